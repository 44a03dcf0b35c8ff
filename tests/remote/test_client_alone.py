"""H01: the client needs no driver of a real device, and no server."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
import remora
from remora import samples

with remora.connect(sys.argv[1]) as host, remora.open(sys.argv[1]) as device:
    kernels = device.load(samples.load("vector"))
    x = device.upload(bytes(range(256)) * 4096)
    y, out = device.allocate(x.size), device.allocate(x.size)
    queue, other = device.queues[:2]
    copied = queue.copy(x, y)
    queue.fill(y.view(0, 4), bytes(4))
    count = x.size // 4
    add = kernels["add_i32"]
    added = other.dispatch(add, add.grid_for(count), [x, y, out], (count,), wait=queue.barrier(), signal=device.semaphore().at(1))

    async def wait():
        await added

    asyncio.run(wait())
    numbers, twice = x.read().cast("I"), out.read().cast("I")
    assert twice[0] == numbers[0] and all(twice[i] == 2 * numbers[i] & 0xFFFFFFFF for i in range(1, count, 997))
    with out.map() as mapping:
        mapping.view[0] = 1
    try:
        device.load(samples.load("faults"))["none"]
    except remora.NotFoundError:
        pass
    print(device.link_statistics().commands, device.statistics().dispatches, len(host.devices))

banned = ("remora.drivers.cpu", "remora.drivers.null", "remora.server", "remora.cli", "remora.testing")
loaded = [name for name in sys.modules if name.startswith(banned)]
assert not loaded, loaded
assert "remora.drivers.remote" in sys.modules
"""


def test_h01_a_full_remote_run_loads_no_other_driver(server):
    done = subprocess.run([sys.executable, "-c", PROGRAM, server.uri], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["1", "1"]


def test_h01_the_device_runs_in_another_process(device, server):
    assert len(server.session_pids()) >= 1
    assert device.info.driver == "cpu"
