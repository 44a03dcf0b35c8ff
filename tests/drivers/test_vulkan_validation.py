"""D03: Khronos' validation layer has nothing to say about what the driver does, and would say it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vulkan, pytest.mark.timeout(120)]
LAYER = "VK_LAYER_KHRONOS_validation"
COMMON = """
import remora
from remora import samples
from remora.testing.cts.hal_factory import hold, words

device = remora.open(URI)
assert "validation" in open("/proc/self/maps").read()
"""
ORDERLY = """
vector, special = device.load(samples.load("vector")), device.load(samples.load("special"), {"FACTOR": 2})
fail, fill = device.load(samples.load("faults"))["fail"], vector["fill_index"]
x, out = device.upload(bytes(range(256)) * 40), device.allocate(10240)
gate = hold(device.queue)
for number in range(50):
    last = device.queue.dispatch(vector["add_i32"], (1, 1, 1), [x, x, out], (2560,))
gate.semaphore.signal(1)
last.wait(30)
device.queue.dispatch(special["tally"], (5, 1, 1), [], (3,)).wait(30)
assert bytes(special.globals["total"].read(timeout=30)) == words(15)
large = device.upload(bytes(9 << 20))
device.queue.fill(large.view(1, 1000), b"x")
device.queue.copy(large.view(0, 4 << 20), large.view(5 << 20, 4 << 20)).wait(30)
with device.command_buffer(slots=1) as commands:
    for number in range(40):
        commands.dispatch(fill, (1, 1, 1), [remora.Slot(0)], (8, number))
        commands.fill(remora.Slot(0, 0, 8), b"ab")
        commands.copy(remora.Slot(0, 0, 16), out, 16)
        commands.update(remora.Slot(0, 5, 3), b"odd")
        commands.update(remora.Slot(0, 4, 12), b"123456789012")
other = device.queues[1]
other.execute(commands, [x]).wait(30)
late, _ = other.allocate(4096)
other.fill(late, b"abcd")
into = bytearray(4096)
other.read(late, into).wait(30)
assert into == b"abcd" * 1024
other.deallocate(late).wait(30)
missing = device.late_buffer(4)
for queue, kernel, bindings, constants in ((other, fill, [missing], (1, 1)), (device.queues[2], fail, [], (7,))):
    try:
        queue.dispatch(kernel, (1, 1, 1), bindings, constants).wait(30)
    except remora.Error as error:
        print("failed as it should:", error)
device.close()
"""
DISORDERLY = """
block = device.upload(bytes(64)).memory.block

class Odd:
    def record(self, vk, commands):
        vk.vkCmdFillBuffer(commands, block.segment.buffer, block.offset, 7, 1)

device._lines[-1].run(Odd())
"""


def run(code, uri):
    environment = os.environ | {"VK_INSTANCE_LAYERS": LAYER}
    command = [sys.executable, "-c", f"URI = {uri!r}\n{COMMON}{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def layer(vulkan):
    places = ("/usr/share", "/usr/local/share", "/etc")
    if not any(list(Path(place, "vulkan/explicit_layer.d").glob("VkLayer_khronos_validation*")) for place in places):
        pytest.skip("needs Khronos' validation layer: apt-get install vulkan-validationlayers")


@pytest.mark.parametrize("uri", ["vulkan", "vulkan://?memory=staged"])
def test_d03_the_layer_finds_nothing(uri):
    told = run(ORDERLY, uri)
    assert told.count("failed as it should") == 2
    assert "VUID" not in told
    assert "Validation" not in told


def test_d03_the_layer_would_find_something():
    assert "VUID-vkCmdFillBuffer-size" in run(DISORDERLY, "vulkan")
