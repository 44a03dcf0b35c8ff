"""D02, D10, H26: OpenCL behind a server: the same program, no driver in the client, and a crash takes one session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.opencl_device import PATIENCE, need_opencl

import remora
from remora import samples
from remora.testing.server import ServerProcess

pytestmark = [pytest.mark.opencl, pytest.mark.timeout(3 * PATIENCE)]
SOON = 30.0

#: Prints a checksum of what two kernels make of numbers, and which modules of drivers were loaded for it.
PROGRAM = """
import sys, zlib
import remora
from remora import samples

with remora.open(sys.argv[1]) as device:
    kernels = device.load(samples.load("vector"))
    count = 100_003
    x, y = device.allocate(4 * count), device.allocate(4 * count)
    index, mix = kernels["fill_index"], kernels["mix_u32"]
    device.queue.dispatch(index, index.grid_for(count), [x], (count, 1))
    device.queue.dispatch(mix, mix.grid_for(count), [x, y], (count, 3))
    print(zlib.crc32(y.read()), *sorted(name for name in sys.modules if name in ("pyopencl", "numpy")))
    drivers = ("remora.drivers.cpu", "remora.drivers.opencl", "remora.server")
    print([name for name in sys.modules if name.startswith(drivers)])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    need_opencl()
    bind = ("tcp://127.0.0.1:0", f"shm://{tmp_path_factory.mktemp('opencl')}/server")
    with ServerProcess(device=("opencl", "cpu"), bind=bind, timeout=PATIENCE) as server:
        yield server


def run(uri):
    """(checksum and foreign modules, drivers) of the program on a device."""
    command = [sys.executable, "-c", PROGRAM, uri]
    told, drivers = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.splitlines()
    return told.split(), drivers


@pytest.fixture(scope="module")
def expected():
    """The checksum on the cpu of this machine, without a server."""
    return run("cpu")[0][:1]


def test_d10_one_program_and_one_bundle_on_cpu_and_opencl(expected):
    need_opencl()
    assert run("opencl")[0][:1] == expected


@pytest.mark.parametrize("carrier", [0, 1])
@pytest.mark.parametrize("number", [0, 1])
def test_d10_the_same_behind_a_server_and_no_driver_in_the_client(server, expected, carrier, number):
    told, drivers = run(f"{server.uris[carrier]}?device={number}")
    assert told == expected  # and no NumPy, no pyopencl
    assert drivers == "[]"


def test_d02_the_servers_parent_loads_no_platform(server):
    with remora.open(server.uri) as device:
        device.queue.barrier().wait(SOON)
        maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (server.pid, *server.session_pids())}
    assert "libpocl" not in maps.pop(server.pid)
    if "Portable" in device.name:
        assert any("libpocl" in text for text in maps.values())


def test_h26_a_crashing_kernel_ends_its_session_and_nobody_elses(server):
    with remora.open(server.uri) as bystander, remora.open(server.uri) as victim:
        if "Portable" not in victim.name:
            pytest.skip("kernels of this device do not run in the session's process: apt-get install pocl-opencl-icd")
        kept = bystander.upload(b"kept" * 1000)
        done = victim.queue.dispatch(victim.load(samples.load("faults"))["crash_segv"], (1, 1, 1), [])
        with pytest.raises(remora.DeviceLostError, match="SIGSEGV"):
            done.wait(SOON)
        with pytest.raises(remora.DeviceLostError):
            victim.allocate(64)
        assert bytes(kept.read(timeout=SOON)) == b"kept" * 1000
        kept.close()
    with remora.open(server.uri) as again:
        assert bytes(again.upload(b"here").read(timeout=SOON)) == b"here"


def test_h26_an_endless_kernel_ends_with_its_session(server):
    with remora.open(server.uri) as device:
        point = device.queue.dispatch(device.load(samples.load("faults"))["spin"], (1, 1, 1), [])
        with pytest.raises(remora.DeadlineError):
            point.wait(0.2)
        (pid,) = server.session_pids()
    with pytest.raises(remora.ClosedError):
        point.wait(SOON)
    with remora.open(server.uri) as again:
        again.queue.barrier().wait(SOON)
    assert pid not in server.session_pids() or not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("where", ["near", "far"])
def test_h40_check_passes(server, where):
    command = [sys.executable, "-m", "remora.cli", "check", "opencl" if where == "near" else server.uri]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, env=wide, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "opencl:c1.2" in done.stdout


def test_d02_a_device_that_is_not_there_keeps_the_server_from_starting():
    need_opencl()
    with (
        pytest.raises(remora.BrokenError, match="no OpenCL device 'nobody'"),
        ServerProcess(device="opencl://nobody", timeout=PATIENCE),
    ):
        pass
