"""A device that works by itself: the null driver behind a StreamQueue, with a thread in the place of the hardware.

`StreamingDevice` does what it is given as soon as it comes; `Hardware.step` lets a test do it one by one.
"""

import inspect
import threading
from collections import deque
from functools import partial

from remora.drivers.null.device import INFO, NullDevice
from remora.drivers.null.queue import NullQueue
from remora.errors import DeviceError, Error
from remora.hal.host_profile import _Timed
from remora.hal.staging import StagingPool
from remora.hal.stream_queue import StreamQueue


class Hardware:
    """Does work in order, and writes marks. It stops for good at the first failure, like a stream; nobody asks it after `end`."""

    def __init__(self, *, by_hand=False):
        self._work = deque()
        self._stir = threading.Condition()
        self._steps = 0 if by_hand else float("inf")
        self._ended = False
        self._marked = 0
        self._fault = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, work, *args):
        assert not self._ended
        with self._stir:
            self._work.append((work, args))
            self._stir.notify_all()

    def mark(self, value):
        self.put(self._set_mark, value)

    def step(self, count=1):
        """Do so much more. A mark is a step of its own."""
        with self._stir:
            self._steps += count
            self._stir.notify_all()

    @property
    def marked(self):
        assert not self._ended
        return self._marked

    @property
    def fault(self):
        assert not self._ended
        return self._fault

    def synchronize(self):
        assert not self._ended
        with self._stir:
            self._stir.wait_for(lambda: self._fault or not self._work)
        return self._fault

    def end(self):
        with self._stir:
            self._ended = True
            self._stir.notify_all()
        self._thread.join()

    def _set_mark(self, value):
        self._marked = value

    def _run(self):
        while True:
            with self._stir:
                self._stir.wait_for(lambda: self._ended or (self._work and self._steps > 0 and not self._fault))
                if self._ended:
                    return
                self._steps -= 1
                work, args = self._work[0]
            try:
                work(*args)
            except Error as error:
                self._fault = error.with_traceback(None)
            except BaseException as error:
                self._fault = DeviceError(f"{type(error).__name__}: {error}")
            work = args = None
            with self._stir:
                self._work.popleft()
                self._stir.notify_all()


class StreamingQueue(StreamQueue):
    """What NullQueue does at an operation's turn is given to the hardware then."""

    locals().update({name: method for name, method in vars(NullQueue).items() if inspect.isfunction(method) and name != "__init__"})

    def __init__(self, device, ordinal, hardware):
        super().__init__(device, ordinal)
        self.hardware = hardware
        self.dispatches = 0

    def _start(self, work, args, value):
        if isinstance(work, _Timed):
            work._work = partial(self._give, work._work)
        else:
            work = partial(self._give, work)
        super()._start(work, args, value)

    def _give(self, work, *args):
        if work == self._play:
            self.drain()
        if work in (self._play, self._run_call, self._move_file, self._make, self._give_back):
            work(*args)
        else:
            self.hardware.put(work, *args)

    def _mark(self, value):
        self.hardware.mark(value)

    def _marked(self):
        return self.hardware.marked

    def _fault(self):
        return self.hardware.fault

    def _synchronize(self):
        return self.hardware.synchronize()


class StreamingDevice(NullDevice):
    def __init__(self, uri="streaming", *, by_hand=False):
        super().__init__(uri)
        self.staging = StagingPool()
        self._queues = tuple(StreamingQueue(self, n, Hardware(by_hand=by_hand)) for n in range(INFO.queue_count))

    def close(self):
        super().close()
        for queue in self._queues:
            queue.hardware.end()


def open_devices(uri):
    """As a driver's module."""
    return (StreamingDevice(str(uri)),)


def preload():
    """Nothing to import."""
