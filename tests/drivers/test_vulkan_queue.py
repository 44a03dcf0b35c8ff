"""D03: the traps of Vulkan: waits before signals, dispatches that go together, kernels that fail, a device that is lost."""

import ctypes
import struct
from ctypes import addressof, byref, c_uint64

import pytest

import remora
from remora import samples
from remora.drivers.vulkan import _ffi as ffi
from remora.errors import ClosedError, DeviceLostError
from remora.testing.cts.hal_factory import background, hold, words

pytestmark = pytest.mark.vulkan
LONG = 30.0
SHORT_NS = 20_000_000
TIMEOUT = 2


@pytest.fixture(params=["mapped", "staged"])
def device(vulkan, request):
    with remora.open(f"vulkan://?memory={request.param}") as opened:
        yield opened


@pytest.fixture
def fill(device):
    return device.load(samples.load("vector"))["fill_index"]


class TestWaitBeforeSignal:
    """H11: a wait may begin before anything signals, natively and in the HAL."""

    def test_d03_a_wait_for_a_value_that_nothing_was_submitted_for(self, device):
        line = device._lines[-1]
        value = line._value + 1
        waiting = background(lambda: line.wait(value))
        assert not waiting.done()
        line.run()
        waiting.result(LONG)

    def test_d03_a_native_submission_that_waits_goes_on_when_the_host_signals(self, device):
        """And it may stand before everything behind it in its VkQueue, which is why the driver submits none."""
        line, vk, handle = device._lines[-1], device.logical.vk, device.logical.handle
        gate, lane = line._new_timeline(), device.logical.lanes[0]
        try:
            waits, values = c_uint64(gate), c_uint64(1)
            numbers = ffi.VkTimelineSemaphoreSubmitInfo(
                waitSemaphoreValueCount=1,
                pWaitSemaphoreValues=addressof(values),
                signalSemaphoreValueCount=1,
                pSignalSemaphoreValues=addressof(c_two := c_uint64(2)),
            )
            stage = ctypes.c_uint32(ffi.VK_PIPELINE_STAGE_TRANSFER_BIT)
            info = ffi.VkSubmitInfo(
                pNext=addressof(numbers),
                waitSemaphoreCount=1,
                pWaitSemaphores=addressof(waits),
                pWaitDstStageMask=addressof(stage),
                signalSemaphoreCount=1,
                pSignalSemaphores=addressof(waits),
            )
            with lane.lock:
                assert vk.vkQueueSubmit(lane.handle, 1, byref(info), 0) == 0
            wanted = ffi.VkSemaphoreWaitInfo(semaphoreCount=1, pSemaphores=addressof(waits), pValues=addressof(c_two))
            assert vk.vkWaitSemaphores(handle, byref(wanted), SHORT_NS) == TIMEOUT
            assert vk.vkSignalSemaphore(handle, byref(ffi.VkSemaphoreSignalInfo(semaphore=gate, value=1))) == 0
            assert vk.vkWaitSemaphores(handle, byref(wanted), int(LONG * 1e9)) == 0
        finally:
            vk.vkDestroySemaphore(handle, gate, None)

    def test_h11_a_queue_that_waits_holds_up_no_other_though_they_share_a_vkqueue(self, device, fill):
        gates = [hold(queue) for queue in device.queues[1:]]
        held = [device.allocate(8) for _ in gates]
        points = [
            queue.dispatch(fill, (1, 1, 1), [buffer], (2, number))
            for number, (queue, buffer) in enumerate(zip(device.queues[1:], held, strict=True))
        ]
        with device.allocate(8) as out:
            device.queue.dispatch(fill, (1, 1, 1), [out], (2, 7)).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == words(7, 8)
        assert not any(point.done for point in points)
        for gate in gates:
            gate.semaphore.signal(1)
        for number, (point, buffer) in enumerate(zip(points, held, strict=True)):
            point.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == words(number, number + 1)


class TestTogether:
    """H17: dispatches that pile up go to the device together, and each is done in its turn."""

    def test_h17_they_run_in_order_and_are_told_one_by_one(self, device, fill):
        kernels = fill.executable
        with device.allocate(8) as x, device.allocate(8) as y:
            told = []
            gate = hold(device.queue)
            points = []
            for number in range(100):
                points.append(device.queue.dispatch(fill, (1, 1, 1), [x], (2, number)))
                points.append(device.queue.dispatch(kernels["add_i32"], (1, 1, 1), [x, y if number else x, y], (2,)))
                points[-1].on_done(lambda number=number: told.append(number))
            gate.semaphore.signal(1)
            points[-1].wait(LONG)
            first = 2 * 0 + sum(range(1, 100))
            assert bytes(y.read(timeout=LONG)) == words(first, 2 * 1 + sum(number + 1 for number in range(1, 100)))
            assert told == list(range(100))
            assert device.statistics().dispatches == 200

    def test_h17_a_wait_among_them_is_waited_for(self, device, fill):
        gate = device.semaphore()
        with device.allocate(4) as out, device.allocate(4) as kept:
            held = hold(device.queue)
            device.queue.dispatch(fill, (1, 1, 1), [out], (1, 1))
            between = device.queue.dispatch(fill, (1, 1, 1), [kept], (1, 5))
            last = device.queue.dispatch(fill, (1, 1, 1), [out], (1, 2), wait=gate.at(1))
            held.semaphore.signal(1)
            between.wait(LONG)
            into = bytearray(4)
            device.queues[1].read(out, into).wait(LONG)
            assert into == words(1)
            assert not last.done
            gate.signal(1)
            last.wait(LONG)
            assert bytes(out.read(timeout=LONG)) == words(2)

    def test_h12_memory_that_never_came_fails_its_own_dispatch_and_what_is_behind(self, device, fill):
        """The dispatches before it, in the same submission, are done."""
        signal = device.semaphore()
        with device.allocate(4) as out:
            late = device.late_buffer(4)  # nobody provides it
            held = hold(device.queue)
            before = device.queue.dispatch(fill, (1, 1, 1), [out], (1, 3))
            broken = device.queue.dispatch(fill, (1, 1, 1), [late], (1, 4))
            behind = device.queue.dispatch(fill, (1, 1, 1), [out], (1, 5), signal=signal.at(1))
            held.semaphore.signal(1)
            before.wait(LONG)
            for point in (broken, behind, signal.at(1)):
                with pytest.raises(remora.UsageError, match="memory is not there yet"):
                    point.wait(LONG)
            into = bytearray(4)
            device.queues[1].read(out, into).wait(LONG)
            assert into == words(3)

    def test_h18_a_long_recording_is_cut_and_stays_in_order(self, device, fill):
        with device.allocate(4 * 2500) as out, device.command_buffer() as commands:
            for number in range(2500):
                commands.dispatch(fill, (1, 1, 1), [out.view(4 * number, 4)], (1, number))
            commands.seal()
            device.queue.execute(commands).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == struct.pack("<2500I", *range(2500))


class TestReports:
    """H26: kernels that report errors run one at a time, so the right queue fails."""

    def test_h26_of_many_queues_those_fail_whose_kernel_did(self, device):
        fail = device.load(samples.load("faults"))["fail"]
        points = [queue.dispatch(fail, (1, 1, 1), [], (number % 2,)) for number, queue in enumerate(device.queues)]
        for number, point in enumerate(points):
            if number % 2:
                with pytest.raises(remora.DeviceError, match="kernel fail failed: it reported 1"):
                    point.wait(LONG)
            else:
                point.wait(LONG)


class TestLost:
    """H26: a lost device is sticky and explained. The driver's answer is the injected failure."""

    def lose(self, device, monkeypatch, command="vkQueueSubmit"):
        """A submission does nothing any more; a wait first sees to it that nothing runs, as the loss of a device does."""
        real = getattr(device.logical.vk, command)

        def lost(*arguments):
            if command == "vkWaitSemaphores":
                assert real(*arguments) == 0
            return ffi.VK_ERROR_DEVICE_LOST

        monkeypatch.setattr(device.logical.vk, command, lost)

    @pytest.mark.parametrize("command", ["vkQueueSubmit", "vkWaitSemaphores"])
    def test_h26_everything_fails_with_the_first_cause(self, device, fill, monkeypatch, command):
        other, semaphore = hold(device.queues[1]), device.semaphore()
        pending = device.queues[1].barrier()
        waiting = background(lambda: semaphore.wait(1, LONG))
        buffer = device.allocate(8)
        self.lose(device, monkeypatch, command)
        done = device.queue.dispatch(fill, (1, 1, 1), [buffer], (2, 0))
        told = r"the device is lost \(VK_ERROR_DEVICE_LOST\).*Close the device and open it again"
        for point in (done, pending, other, semaphore.at(1)):
            with pytest.raises(DeviceLostError, match=told) as caught:
                point.wait(LONG)
            assert caught.value.origin
        with pytest.raises(DeviceLostError, match=told):
            waiting.result(LONG)
        monkeypatch.undo()
        for call in (
            lambda: device.allocate(1),
            device.semaphore,
            lambda: device.load(samples.load("vector")),
            lambda: device.queues[2].fill(buffer),
            lambda: device.queues[3].dispatch(fill, (1, 1, 1), [buffer], (1, 1)),
            lambda: buffer.read(timeout=LONG),
        ):
            with pytest.raises(DeviceLostError, match=told):
                call()
        buffer.close()
        device.close()
        with pytest.raises(ClosedError):
            device.allocate(1)

    def test_h26_a_new_device_works_beside_a_lost_one(self, device, fill, monkeypatch):
        with device.allocate(8) as buffer:
            self.lose(device, monkeypatch)
            with pytest.raises(DeviceLostError):
                device.queue.dispatch(fill, (1, 1, 1), [buffer], (2, 0)).wait(LONG)
        with remora.open("vulkan") as again, again.allocate(8) as out:
            kernel = again.load(samples.load("vector"))["fill_index"]
            again.queue.dispatch(kernel, (1, 1, 1), [out], (2, 0)).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == words(0, 1)
