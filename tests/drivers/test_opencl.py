"""D02: what the opencl driver does beside what every driver does: choosing a device, compiling, and OpenCL's own limits."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.opencl_device import PATIENCE, need_opencl

import remora
from remora import samples
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, ConstantRule, KernelInfo
from remora.hal.registry import find_driver
from remora.hal.specialization import ExecutableInfo, GlobalRule
from remora.hal.target import Target

pytestmark = [pytest.mark.opencl, pytest.mark.timeout(3 * PATIENCE)]
SOON = 30.0
C12 = Target("opencl", "c1.2")
PIXEL = KernelInfo("pixel", (BindingRule("out", Access.WRITE, 4),), (ConstantRule("value"),))


@pytest.fixture
def device():
    need_opencl()
    with remora.open("opencl") as opened:
        yield opened


def load(device, text, *kernels, **more):
    """Compile a text whose kernels have these contracts."""
    return device.load_artifact(C12, text.encode(), ExecutableInfo(kernels, **more))


# -- which device, and where there is none ---------------------------------------------------------------------------------------


def test_d02_the_facts_are_the_devices(device):
    info = device.info
    assert info.driver == "opencl"
    assert info.targets[-1] == C12
    assert info.heaps[0].size >= info.heaps[0].max_allocation > 0
    assert info.page_size == 0
    assert len(device.queues) == 4


@pytest.mark.parametrize("attributes", [{"shared_bytes": 64}, {"cluster": (2, 1, 1)}])
def test_d04_launch_attributes_are_refused(device, attributes):
    text = "kernel void pixel(global uint *out, uint value) { out[0] = value; }"
    with pytest.raises(remora.UnsupportedError, match=r"pixel .* which the opencl driver does not have"):
        load(device, text, replace(PIXEL, **attributes))


def test_d02_a_device_is_chosen_by_number_or_by_name(device):
    word = device.name.split("(")[1].split()[0].rstrip(")").upper()
    for uri in ("opencl", "opencl://", "opencl:0", "opencl://0", f"opencl://{word}"):
        with remora.open(uri) as other:
            assert other.info == device.info


@pytest.mark.parametrize("place", ["nobody", "1000"])
def test_d02_a_device_that_is_not_there_is_answered_with_those_that_are(device, place):
    with pytest.raises(remora.NotFoundError, match=rf"no OpenCL device '{place}'; there are: opencl:0 "):
        remora.open(f"opencl://{place}")


def test_d02_an_option_is_refused():
    with pytest.raises(remora.UsageError, match="the opencl driver knows none"):
        remora.open("opencl://?threads=2")


def message_of(code, **environment):
    """What a fresh process says when it opens the device."""
    program = f"{code}\nimport remora\ntry:\n remora.open('opencl')\nexcept remora.UnsupportedError as error:\n print(error)"
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout


def test_d02_without_pyopencl_it_says_what_to_install():
    assert "pip install 'remora[opencl]'" in message_of("import sys\nsys.modules['pyopencl'] = None")


def test_d02_without_a_platform_it_says_what_to_install(tmp_path):
    pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'remora[opencl]'")
    assert "apt-get install pocl-opencl-icd" in message_of("", OCL_ICD_VENDORS=str(tmp_path))


def test_d02_preloading_loads_no_platform_and_starts_no_thread():
    """A server's parent preloads, and forks afterwards."""
    program = (
        "import os, pathlib\nfrom remora.hal.registry import find_driver\nfind_driver('opencl').preload()\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "print(len(os.listdir('/proc/self/task')), 'libpocl' in maps, 'OPENBLAS_NUM_THREADS' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["1", "False", "False"]
    find_driver("opencl").preload()


# -- compiling --------------------------------------------------------------------------------------------------------------------


def test_d02_the_compilers_words_are_in_the_error(device):
    with pytest.raises(remora.UsageError, match=r"(?s)the artifact does not compile for .*undeclared identifier 'missing'"):
        load(device, "__kernel void pixel(__global uint *out, uint value) { *out = missing; }", PIXEL)
    device.queue.barrier().wait(SOON)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("__global uint *out", "compiled with 0 constants, its manifest has 1"),
        ("uint value", "compiled with 0 bindings, its manifest has 1"),
        ("uint value, __global uint *out", "'out' out of order"),
        ("__global uint *out, uint2 value", "'value' of type uint2"),
        ("__global uint *out, uint value, __global int *remora_status, uint more", "remora_status, which has to be last"),
    ],
)
def test_h25_arguments_that_are_none_of_ours_are_refused(device, parameters, message):
    with pytest.raises(remora.UsageError, match=message):
        load(device, f"__kernel void pixel({parameters}) {{}}", PIXEL)


def test_h25_workgroups_that_the_device_cannot_run_are_refused(device):
    huge = KernelInfo("pixel", PIXEL.bindings, PIXEL.constants, workgroup=(1 << 20, 1, 1))
    with pytest.raises(remora.UsageError, match="workgroups of 1048576, this device runs"):
        load(device, "__kernel void pixel(__global uint *out, uint value) {}", huge)


def test_h17_workgroups_have_the_size_of_the_contract(device):
    text = "__kernel void mark(__global uint *out) { out[get_global_id(0)] = get_local_size(0) * 100 + get_local_id(0); }"
    kernel = load(device, text, KernelInfo("mark", (BindingRule("out"),), workgroup=(4, 1, 1)))["mark"]
    with device.upload(bytes(32)) as out:
        device.queue.dispatch(kernel, (2, 1, 1), [out])
        assert out.read(timeout=SOON).cast("I").tolist() == [400, 401, 402, 403] * 2


def test_h17_constants_of_every_type_arrive(device):
    text = """#pragma OPENCL EXTENSION cl_khr_fp64 : enable
    __kernel void tell(__global ulong *out, uint a, int b, float c, ulong d, long e, double f) {
      out[0] = a; out[1] = (ulong)(long)b; out[2] = as_uint(c); out[3] = d; out[4] = (ulong)e; out[5] = as_ulong(f);
    }"""
    types = ("u32", "i32", "f32", "u64", "i64", "f64")
    info = KernelInfo("tell", (BindingRule("out", bytes=48),), tuple(ConstantRule(kind, kind) for kind in types))
    tell = load(device, text, info)["tell"]
    with device.allocate(48) as out:
        device.queue.dispatch(tell, (1, 1, 1), [out], (1, -2, 1.5, 1 << 63, -(1 << 40), -0.25))
        numbers = out.read(timeout=SOON).cast("Q").tolist()
    assert numbers == [1, (1 << 64) - 2, 0x3FC00000, 1 << 63, (1 << 64) - (1 << 40), 0xBFD0000000000000]


def test_h19_globals_begin_with_zeros_or_with_what_the_program_puts_there(device):
    text = "#pragma remora global seen 8\n{}__kernel void count(__global uint *seen) {{ seen[1] += 1; }}"
    fill = "__kernel void remora_globals(__global uint *seen) { seen[0] = 5; seen[1] = 6; }\n"
    for first, expected in (("", [0, 2]), (fill, [5, 8])):
        program = load(device, text.format(first), KernelInfo("count"), globals=(GlobalRule("seen", 8),))
        for _ in range(2):
            device.queue.dispatch(program["count"], (1, 1, 1), [])
        assert program.globals["seen"].read(timeout=SOON).cast("I").tolist() == expected
        assert [export.name for export in program.exports] == ["count"]


def test_h25_what_fills_globals_takes_nothing_else(device):
    text = "#pragma remora global seen 8\n__kernel void remora_globals(__global uint *seen, __global uint *more) {}"
    with pytest.raises(remora.UsageError, match="'more' out of order"):
        load(device, text + "__kernel void count(void) {}", KernelInfo("count"))
    text = "#pragma remora global seen 8\n__kernel void remora_globals(uint number, __global uint *seen) {}"
    with pytest.raises(remora.UsageError, match="remora_globals takes more than the program's globals"):
        load(device, text + "__kernel void count(void) {}", KernelInfo("count"))


# -- OpenCL's own limits: places that it lets no buffer begin at ------------------------------------------------------------------


def test_h17_views_may_begin_where_opencl_lets_no_buffer_begin(device):
    """A kernel sees a view that begins anywhere, and nothing beside it changes."""
    add = device.load(samples.load("vector"))["add_i32"]
    numbers = np.arange(64, dtype="u4")
    for first in (1, 3, 32, 33):
        with device.upload(numbers) as a, device.upload(numbers * 10) as b, device.upload(np.full(64, 7, "u4")) as out:
            places = [a.view(4 * first, 80), b.view(0, 80), out.view(4 * (first + 2), 80)]
            device.queue.dispatch(add, (1, 1, 1), places, (20,))
            got = np.frombuffer(out.read(timeout=SOON), "u4")
        expected = np.full(64, 7, "u4")
        expected[first + 2 : first + 22] = numbers[first : first + 20] + 10 * numbers[:20]
        assert np.array_equal(got, expected)


def test_h17_one_view_may_be_read_and_written(device):
    saxpy = device.load(samples.load("vector"))["saxpy_f32"]
    with device.upload(np.ones(40, "f4")) as values:
        view = values.view(12, 100)
        device.queue.dispatch(saxpy, (1, 1, 1), [view, view], (25, 2.0))
        got = np.frombuffer(values.read(timeout=SOON), "f4")
    assert got.tolist() == [1.0] * 3 + [3.0] * 25 + [1.0] * 12


# -- order and memory -----------------------------------------------------------------------------------------------------------


def test_h11_a_wait_may_come_before_its_signal(device):
    """OpenCL has no timeline semaphores: the host keeps the order between queues."""
    first, second = device.queues[:2]
    gate = device.semaphore()
    with device.upload(b"aaaa") as buffer:
        late = second.fill(buffer, b"c", wait=gate.at(2))
        early = first.fill(buffer, b"b", wait=gate.at(1), signal=gate.at(2))
        assert not late.done
        gate.signal(1)
        late.wait(SOON)
        assert early.done
        assert bytes(buffer.read(timeout=SOON)) == b"cccc"


def test_h16_out_of_memory_says_how_much_was_asked_for_and_how_much_is_there(device):
    heap = device.info.heaps[0]
    with pytest.raises(remora.OutOfMemoryError, match=rf"asked for {heap.size * 2:,} bytes, one buffer can have"):
        device.allocate(heap.size * 2)
    held = []
    with pytest.raises(
        remora.OutOfMemoryError, match=rf"asked for {heap.max_allocation:,} bytes, [\d,]+ of {heap.size:,} are free"
    ):
        while True:  # reserved, and never touched
            held.append(device.allocate(heap.max_allocation))
    for buffer in held:
        buffer.close()
    assert device.statistics().buffers == 0
    device.allocate(64).close()


def test_h16_what_opencl_itself_refuses_is_out_of_memory_too(device):
    """The book may know of more than the device has left: other programs use it as well."""
    from remora.drivers.opencl.memory import Book, Memory

    book = Book(device.context, 1 << 60, "here")
    memory = Memory(book, 1 << 50)
    with pytest.raises(remora.OutOfMemoryError, match=rf"asked for {1 << 50:,} bytes, {1 << 60:,} of .* OpenCL refused"):
        memory.make()
    with pytest.raises(remora.OutOfMemoryError):  # and stays so
        memory.object  # noqa: B018
    del memory
    assert book.statistics()[:2] == (0, 0)


@pytest.mark.parametrize(
    ("code", "kind", "cure"),
    [
        (-4, remora.OutOfMemoryError, "close buffers first"),
        (-5, remora.DeviceError, "a kernel went out of bounds"),
        (-6, remora.OutOfMemoryError, "close buffers first"),
        (-14, remora.DeviceLostError, "open it again"),
        (-36, remora.DeviceLostError, "open it again"),
        (-9999, remora.DeviceLostError, "open it again"),
        (-30, remora.DeviceError, r"refused this \(code -30\)"),
    ],
)
def test_h26_what_opencl_says_has_a_meaning_and_a_cure(code, kind, cure):
    """PoCL never says most of these: a GPU's driver does after a fault."""
    cl = pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'remora[opencl]'")
    from remora.drivers.opencl.failures import failing

    with pytest.raises(remora.DeviceError, match=f"kernel x: clFinish.*{cure}") as caught, failing("kernel x"):
        raise cl.LogicError(cl._cl._ErrorRecord(msg="", code=code, routine="clFinish"))
    assert type(caught.value) is kind


def test_h22_virtual_memory_is_refused(device):
    for make in (device.reserve, device.physical):
        with pytest.raises(remora.UnsupportedError, match="virtual memory"):
            make(1 << 20)


def test_h18_a_recording_is_enqueued_whole(device):
    fill_index = device.load(samples.load("vector"))["fill_index"]
    with device.allocate(4000) as out, device.command_buffer() as commands:
        for first in range(200):
            commands.dispatch(fill_index, (1, 1, 1), [out], (1000, first))
        commands.seal()
        device.queue.execute(commands).wait(SOON)
        assert np.frombuffer(out.read(timeout=SOON), "u4").tolist() == list(range(199, 1199))
        assert device.statistics().dispatches == 200


def test_d11_the_matrix_product_equals_numpys(device):
    kernel = device.load(samples.load("matmul"))["matmul"]
    a, b = np.random.default_rng(1).integers(-8, 9, (2, 512, 512)).astype("f4")
    with device.upload(a) as left, device.upload(b) as right, device.allocate(a.nbytes) as out:
        device.queue.dispatch(kernel, kernel.grid_for(), [left, right, out])
        assert np.array_equal(np.frombuffer(out.read(timeout=SOON), "f4").reshape(512, 512), a @ b)


def test_d11_saxpy_rounds_as_numpy_does(device):
    kernel = device.load(samples.load("vector"))["saxpy_f32"]
    x, y = np.random.default_rng(2).standard_normal((2, 50_000)).astype("f4")
    with device.upload(x) as left, device.upload(y) as out:
        device.queue.dispatch(kernel, kernel.grid_for(50_000), [left, out], (50_000, 0.1))
        assert np.array_equal(np.frombuffer(out.read(timeout=SOON), "f4"), np.float32(0.1) * x + y)
