"""D10, D11: one bundle and one client program, on every kind of device, here and behind servers: the same results.

The client of a server imports no driver, and maps no vendor's library.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cuda_device import need_cuda
from tests.opencl_device import PATIENCE, need_opencl

from remora.testing.server import ServerProcess

pytestmark = pytest.mark.timeout(3 * PATIENCE)
ROOT = Path(__file__).parents[2]

#: Whole numbers all the way, in the floating-point kernels too: so no device may differ in a bit.
PROGRAM = """
import sys, zlib
from array import array
import remora
from remora import samples

with remora.open(sys.argv[1], retry=30) as device:
    queue, vector = device.queue, device.load(samples.load("vector"))
    n = 100_003
    x, y, z = (device.allocate(4 * n) for _ in range(3))

    def run(kernel, buffers, constants):
        queue.dispatch(vector[kernel], vector[kernel].grid_for(n), buffers, constants)
        return buffers[-1]

    def tell(name, buffer):
        print(name, zlib.crc32(buffer.read()))

    tell("fill_index", run("fill_index", [x], (n, 7)))
    tell("mix_u32", run("mix_u32", [x, y], (n, 5)))
    tell("add_i32", run("add_i32", [x, y, z], (n,)))
    y.write(array("f", (index % 1000 for index in range(n))))
    z.write(array("f", (index % 77 for index in range(n))))
    tell("saxpy_f32", run("saxpy_f32", [y, z], (n, 3.0)))
    queue.fill(x.view(4, 4 * n - 8), b"Z!")
    queue.copy(x.view(0, 2 * n // 4 * 4), y.view(2 * n // 4 * 4, 2 * n // 4 * 4))
    tell("fill and copy", y)

    size = 512
    matmul = device.load(samples.load("matmul"))["matmul"]
    a, b = (device.upload(array("f", ((17 * index + seed) % 13 - 6 for index in range(size * size)))) for seed in (1, 5))
    c = device.allocate(4 * size * size)
    queue.dispatch(matmul, matmul.grid_for(), [a, b, c])
    tell("matmul", c)

    with device.command_buffer(slots=1) as commands:
        commands.dispatch(vector["add_i32"], vector["add_i32"].grid_for(n), [x, x, remora.Slot(0)], (n,))
        commands.barrier()
        commands.dispatch(vector["mix_u32"], vector["mix_u32"].grid_for(n), [remora.Slot(0), y], (n, 3))
        commands.seal()
        queue.execute(commands, [z])
    tell("recording", y)

if sys.argv[1].startswith("remote-"):
    drivers = [name for name in sys.modules if name.startswith("remora.drivers.") and name.split(".")[2] != "remote"]
    maps = open("/proc/self/maps").read()
    vendors = [library for library in ("libcuda", "libvulkan", "libOpenCL", "libpocl", "libamdhip64") if library in maps]
    assert not drivers + vendors, drivers + vendors
"""

DEVICES = [
    "cpu",
    pytest.param("opencl", marks=pytest.mark.opencl),
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param("cuda", marks=pytest.mark.cuda),
]


def need(device, request):
    """Skip, and say what to install, where this machine has no such device."""
    if device == "vulkan":
        request.getfixturevalue("vulkan")
    else:
        {"cpu": lambda: None, "opencl": need_opencl, "cuda": need_cuda}[device]()


def run(*command):
    """What a program of its own prints."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def expected():
    """On the processor of this machine, without a server."""
    return run("-c", PROGRAM, "cpu")


@pytest.fixture(params=DEVICES, scope="module")
def uris(request, tmp_path_factory):
    """One kind of device: here, and behind a server over tcp and shm."""
    need(request.param, request)
    folder = tmp_path_factory.mktemp(request.param)
    binds = ["tcp://127.0.0.1:0", f"shm://{folder}/server"]
    with ServerProcess(device=request.param, bind=binds, timeout=PATIENCE) as server:
        yield [request.param, *server.uris]


@pytest.mark.parametrize("where", ["here", "tcp", "shm"])
def test_d11_one_bundle_and_one_program_give_the_same_everywhere(uris, expected, where):
    assert len(expected) == 7
    assert run("-c", PROGRAM, uris[("here", "tcp", "shm").index(where)]) == expected


@pytest.mark.parametrize("where", ["here", "tcp", "shm"])
def test_d10_the_examples_run_on_every_kind_of_device(uris, where):
    uri = uris[("here", "tcp", "shm").index(where)]
    assert run("examples/local.py", uri)[-1] == "added 1,000,000 numbers, exactly"
    assert run("examples/remote.py", uri)[-1] == "multiplied two 512 x 512 matrices, exactly"
    assert run("examples/async_pipeline.py", uri)[-1] == "batch 7 is here, exactly"
