"""D03, D10: a Vulkan device behind a server: the client needs nothing of Vulkan, and a crash costs one session."""

import subprocess
import sys

import pytest

import remora
from remora import samples
from remora.cli.main import main
from remora.testing.server import ServerProcess

pytestmark = pytest.mark.vulkan
SOON = 30.0
PROGRAM = """
import sys
from pathlib import Path
import remora
from remora import samples

with remora.open(sys.argv[1]) as device:
    kernels = device.load(samples.load("vector"))
    x = device.upload(bytes(range(256)) * 4096)
    out = device.allocate(x.size)
    count = x.size // 4
    add = kernels["add_i32"]
    device.queue.dispatch(add, add.grid_for(count), [x, x, out], (count,)).wait(30)
    numbers, twice = x.read().cast("I"), out.read().cast("I")
    assert all(twice[i] == 2 * numbers[i] & 0xFFFFFFFF for i in range(count))
    print(kernels.target, device.info.driver)
assert not [name for name in sys.modules if name.startswith("remora.drivers.vulkan")]
assert "libvulkan" not in Path("/proc/self/maps").read_text()
"""


@pytest.fixture(scope="module")
def server(vulkan, tmp_path_factory):
    binds = ["tcp://127.0.0.1:0", f"shm://{tmp_path_factory.mktemp('vulkan')}/server"]
    with ServerProcess(["vulkan", "cpu"], bind=binds) as running:
        yield running


def test_h01_the_client_loads_nothing_of_vulkan(server):
    command = [sys.executable, "-c", PROGRAM, server.uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["vulkan:spirv1.3+bda", "vulkan"]


def test_d11_one_bundle_computes_the_same_on_vulkan_and_cpu_local_and_remote(server):
    results = []
    with remora.connect(server.uri) as host, remora.open("cpu") as cpu, remora.open("vulkan") as vulkan:
        devices = (*host.devices, cpu, vulkan)
        assert [device.info.driver for device in devices] == ["vulkan", "cpu", "cpu", "vulkan"]
        for device in devices:
            mix = device.load(samples.load("vector"))["mix_u32"]
            with device.upload(bytes(range(200)) * 1000) as x, device.allocate(200_000) as out:
                device.queue.dispatch(mix, mix.grid_for(50_000), [x, out], (50_000, 3)).wait(SOON)
                results.append(bytes(out.read(timeout=SOON)))
    assert results[1:] == results[:1] * 3


def test_h26_a_kernel_that_goes_out_of_bounds_takes_its_own_session_and_no_other(server, vulkan):
    if "llvmpipe" not in vulkan.name:
        pytest.skip("only lavapipe runs kernels in the session's process")
    with remora.open(server.uri) as bystander, remora.open(server.uri) as victim:
        kept = bystander.upload(b"kept" * 1000)
        kernel = victim.load(samples.load("faults"))["crash_segv"]
        done = victim.queue.dispatch(kernel, (1, 1, 1), [])
        for _ in range(2):
            with pytest.raises(remora.DeviceLostError, match="SIGSEGV"):
                done.wait(SOON)
        with pytest.raises(remora.DeviceLostError, match="SIGSEGV"):
            victim.allocate(64)
        assert bytes(kept.read(timeout=SOON)) == b"kept" * 1000
        kept.close()


def test_h40_check_and_devices_take_it(vulkan, server, capsys):
    assert main(["check", "vulkan:0"]) == 0
    assert main(["devices", "vulkan"]) == 0
    assert main(["check", server.uri]) == 0
    told = capsys.readouterr().out
    assert told.count("PASS") == 2
    assert "vulkan:spirv1.3+bda" in told
