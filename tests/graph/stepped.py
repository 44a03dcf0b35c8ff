"""A device whose queues stand still until a test steps them: the null driver with its worker taken out."""

from collections import deque

from remora.drivers.null.device import NullDevice
from remora.drivers.null.queue import NullQueue
from remora.hal.host_queue import fail_all, signal_all
from remora.hal.semaphore import Timepoint


class SteppedQueue(NullQueue):
    """Operations wait in `todo`, in order."""

    __slots__ = ("todo",)

    def __init__(self, device, ordinal):
        super().__init__(device, ordinal)
        self.todo = deque()

    def _submit(self, work, args, cost_ns, wait, signal):
        if self.timeline.failure is not None:
            raise self.timeline.failure.copy()
        if self._closing:
            raise self._closed_error()
        self._submitted += 1
        self.todo.append((work, args, wait, signal, self._submitted))
        return Timepoint(self.timeline, self._submitted)

    def step(self):
        """Do the first operation; False when there is none, or it waits for something."""
        if not self.todo:
            return False
        work, args, wait, signal, value = self.todo[0]
        if not all(point.semaphore.value >= point.value for point in wait):
            return False
        self.todo.popleft()
        work(*args)
        signal_all(signal)
        self.timeline._reach(value)
        return True

    def fail(self, error):
        """The first operation fails, and with it the queue."""
        _, _, _, signal, value = self.todo.popleft()
        self._fail(error, signal, value)
        for _, _, _, signals, _ in self.todo:
            fail_all(signals, error)
        self.todo.clear()


class SteppedDevice(NullDevice):
    """Three such queues behind one for the host's own needs, which runs at once. A runtime's lanes are 0, 1 and 2 here too."""

    def __init__(self):
        super().__init__("null")
        self.lanes = tuple(SteppedQueue(self, ordinal) for ordinal in (1, 2, 3))
        self._queues = (NullQueue(self, 0), *self.lanes)

    def step(self, lane, count=1):
        """Do so many operations of a lane; each must be able to run."""
        for _ in range(count):
            assert self.lanes[lane].step(), f"lane {lane} has nothing that can run"

    def todo(self, lane=0):
        """How many operations a lane has not done."""
        return len(self.lanes[lane].todo)

    def run(self):
        """Step all lanes until nothing moves."""
        while any(queue.step() for queue in self.lanes):
            pass

    def close(self):
        """As if the operations that were not done had been cancelled."""
        super().close()
        for queue in self.lanes:
            queue.todo.clear()
