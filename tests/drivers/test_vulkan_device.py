"""D03: opening a Vulkan device, what it says where something is missing, its memory, and its end."""

import re
import subprocess
import sys
import threading
from functools import partial

import pytest

import remora
from remora import samples
from remora.drivers.vulkan import loader
from remora.errors import ClosedError, NotFoundError, OutOfMemoryError, UnsupportedError, UsageError
from remora.hal.executable import BindingRule, KernelInfo
from remora.testing.cts.hal_factory import background

pytestmark = pytest.mark.vulkan
LONG = 30.0


def run(code, **environment):
    """A program of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False, env=environment or None
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def device(vulkan):
    with remora.open("vulkan") as opened:
        yield opened


@pytest.mark.parametrize("uri", ["vulkan", "vulkan:0", "vulkan://0", "vulkan://{name}", "vulkan://{start}?memory=staged"])
def test_d03_a_device_by_number_and_by_name(vulkan, uri):
    with remora.open(uri.format(name=vulkan.name, start=vulkan.name[:5].upper())) as device:
        assert device.name == vulkan.name
        assert device.info.driver == "vulkan"


def test_d03_a_device_that_is_not_there_is_named_with_what_is(vulkan):
    for place in ("99", "no such card"):
        with pytest.raises(NotFoundError, match=rf"no Vulkan device '{place}'; there are vulkan:0 \({re.escape(vulkan.name)}"):
            remora.open(f"vulkan://{place}")


def test_d03_options_are_checked():
    with pytest.raises(UsageError, match="does not know 'threads'; write vulkan"):
        remora.open("vulkan://?threads=2")
    with pytest.raises(UsageError, match="mapped or staged, not 'fast'"):
        remora.open("vulkan://?memory=fast")


def test_h19_targets_go_from_most_to_least(vulkan):
    keys = [target.key for target in vulkan.targets]
    assert keys[-1] == "spirv1.3+bda"
    assert keys[0].startswith("spirv1.5+bda")
    assert {target.family for target in vulkan.targets} == {"vulkan"}
    assert set(samples.load("vector").targets) & set(vulkan.targets)


def test_d03_a_missing_loader_says_what_to_install(monkeypatch):
    monkeypatch.setattr(loader, "LIBRARY", "libvulkan-that-is-not-there.so.1")
    loader.library.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match=r"no Vulkan loader.*apt-get install libvulkan1 mesa-vulkan-drivers"):
            remora.open("vulkan")
    finally:
        loader.library.cache_clear()


def test_d03_a_missing_driver_says_what_to_install(vulkan):
    code = """
import remora
try:
    remora.open("vulkan")
except remora.UnsupportedError as error:
    print(error)
"""
    told = run(code, VK_DRIVER_FILES="/nowhere/none.json", VK_ICD_FILENAMES="/nowhere/none.json", VK_LOADER_DEBUG="")
    assert "apt-get install libvulkan1 mesa-vulkan-drivers" in told
    assert "driver" in told


def test_d03_nothing_is_loaded_before_a_device_is_opened(vulkan):
    code = """
from pathlib import Path
from remora.hal.registry import find_driver
find_driver("vulkan").preload()
import sys
print("remora.drivers.vulkan.device" in sys.modules, "libvulkan" in Path("/proc/self/maps").read_text())
"""
    assert run(code) == "True False"


def test_h27_a_closed_device_leaves_nothing(vulkan):
    code = """
import gc, os, time, remora
from remora import samples

gc.disable()  # close ends it all, not the garbage collector

def held():
    # threads, the driver's too, and files
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

def once():
    kept = []
    with remora.open("vulkan") as device:
        kernels = device.load(samples.load("special"), {"FACTOR": 1})
        kept += [kernels, kernels["tally"], device.upload(bytes(5 << 20)), kernels.globals["total"], device.queue, device]
        device.queue.dispatch(kernels["tally"], (1, 1, 1), [], (3,)).wait(30)
        with kept[2].map() as mapping:
            view = mapping.view
    assert len(view) == 5 << 20 and not any(view[:100])
    del view

once()
before = held()
for _ in range(5):
    once()
end = time.monotonic() + 20
while held() > before and time.monotonic() < end:  # a thread is listed for a moment after it was joined
    os.sched_yield()
assert held() <= before, (before, held())
print("clean")
"""
    assert run(code) == "clean"


def test_h27_threads_that_load_and_allocate_see_the_end(vulkan):
    bundle, rounds = samples.load("special"), 3

    def use(device, started):
        started.set()
        count = 0
        while True:
            try:
                with device.allocate(300_000) as buffer:
                    buffer.write(b"data")
                device.load(bundle, {"FACTOR": 1}).close()
                count += 1
            except ClosedError:
                return count

    for _ in range(rounds):
        with remora.open("vulkan") as device:
            started = [threading.Event() for _ in range(3)]
            users = [background(partial(use, device, each)) for each in started]
            assert all(each.wait(LONG) for each in started)
        for user in users:
            user.result(LONG)


class TestMemory:
    """H16: what is asked for and what there is."""

    def test_h16_more_than_the_heap_says_how_much_there_is(self, device):
        heap = device.info.heaps[0]
        piece = min(heap.max_allocation, heap.size // 2)
        taken = [device.allocate(piece) for _ in range(heap.size // piece)]
        with pytest.raises(OutOfMemoryError, match=rf"asked for {piece:,} bytes, [\d,]+ of {heap.size:,} are free: close a buffer"):
            device.allocate(piece)
        for buffer in taken:
            buffer.close()
        assert device.statistics().buffers == 0

    def test_h16_a_driver_that_has_no_more_is_quoted_and_the_device_goes_on(self, vulkan):
        code = """
import resource, remora
with remora.open("vulkan") as device:
    small = device.upload(b"small")
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
    try:
        device.allocate(1 << 30)
    except remora.OutOfMemoryError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    assert bytes(small.read()) == b"small" and device.statistics().buffers == 1
    device.allocate(1 << 20).write(bytes(1 << 20))
"""
        assert re.match(r"llvmpipe.*asked for 1,073,741,824 bytes, [\d,]+ of [\d,]+ are free", run(code))

    def test_h16_memory_is_used_again(self, device):
        for size in (1, 256, 257, 100_000, 256 << 10, 300_000):
            first = device.allocate(size)
            place = first.memory.block.segment.address + first.memory.block.offset
            first.close()
            del first
            with device.allocate(size) as second:
                if size <= 256 << 10:
                    assert second.memory.block.segment.address + second.memory.block.offset == place

    @pytest.mark.parametrize("pattern", [b"a", b"ab", b"abcd"])
    def test_h17_a_staged_fill_of_any_range(self, vulkan, pattern):
        with remora.open("vulkan://?memory=staged") as device, device.upload(bytes(64)) as buffer:
            expected = bytearray(64)
            for start in range(0, 12, len(pattern)):
                for size in range(0, 16, len(pattern)):
                    device.queue.fill(buffer.view(start, size), pattern).wait(LONG)
                    expected[start : start + size] = pattern * (size // len(pattern))
                    assert bytes(buffer.read(timeout=LONG)) == expected

    def test_h16_a_staged_buffer_has_no_host_memory(self, vulkan):
        with remora.open("vulkan://?memory=staged") as device, device.allocate(64) as buffer:
            assert buffer.host_memory() is None
            assert buffer.memory_at_turn() is None

    def test_h27_a_buffer_of_a_closed_device_says_so(self, vulkan):
        device = remora.open("vulkan")
        buffer = device.upload(b"data")
        device.close()
        with pytest.raises(ClosedError, match="closed"):
            buffer.host_memory()


class TestLimits:
    """D03: what the device cannot do is refused, and says what it could."""

    def test_h17_a_grid_that_is_too_large(self, device):
        fill = device.load(samples.load("vector"))["fill_index"]
        most = device.max_grid
        grid = (most[0] + 1, 1, 1)
        if grid[0] > 0xFFFFFFFF:
            pytest.skip("this device takes every grid there is")
        with device.allocate(64) as out:
            with pytest.raises(UsageError, match=re.escape(f"the grid {grid} is more than {most}")):
                device.queue.dispatch(fill, grid, [out], (1, 1))
            with device.command_buffer() as commands:
                commands.dispatch(fill, grid, [out], (1, 1))
            with pytest.raises(UsageError, match="is more than"):
                device.queue.execute(commands)
            device.queue.dispatch(fill, (most[0], 1, 1), [out], (1, 1)).wait(LONG)
            with device.upload(b"".join(count.to_bytes(4, "little") for count in grid)) as place:
                late = device.queue.dispatch_indirect(fill, place, [out], (1, 1))
                with pytest.raises(UsageError, match="is more than"):
                    late.wait(LONG)

    def test_h19_more_bindings_than_push_constants(self, device):
        target, artifact = samples.load("vector").select(device.targets)
        most = device.adapter.limits.maxPushConstantsSize
        info = KernelInfo("empty", tuple(BindingRule(f"b{number}") for number in range(most // 8 + 1)))
        with pytest.raises(UnsupportedError, match=f"takes {most} bytes of push constants, 8 for each binding"):
            device.load_artifact(target, artifact, (info,))

    @pytest.mark.parametrize("attributes", [{"shared_bytes": 64}, {"cluster": (2, 1, 1)}])
    def test_d04_launch_attributes(self, device, attributes):
        target, artifact = samples.load("vector").select(device.targets)
        with pytest.raises(UnsupportedError, match=r"empty .* which the vulkan driver does not have"):
            device.load_artifact(target, artifact, (KernelInfo("empty", **attributes),))

    @pytest.mark.parametrize(("capability", "message"), [(4, "capability 4, which remora does not"), (6, "capability 6")])
    def test_h19_a_capability_that_is_not_there(self, device, capability, message):
        target, artifact = samples.load("vector").select(device.targets)
        words = bytearray(artifact)
        assert words[20:28] == b"\x11\0\x02\0\x01\0\0\0"  # OpCapability Shader
        words[24] = capability
        with pytest.raises(UnsupportedError, match=message):
            device.load_artifact(target, bytes(words), samples.load("vector").kernels)

    def test_h19_a_module_that_is_too_new(self, device):
        target, artifact = samples.load("vector").select(device.targets)
        with pytest.raises(UnsupportedError, match=r"is SPIR-V 1\.9, .* takes up to 1\.5"):
            device.load_artifact(target, artifact[:5] + b"\x09" + artifact[6:], samples.load("vector").kernels)
