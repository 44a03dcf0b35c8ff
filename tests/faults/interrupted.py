"""A client that may be interrupted anywhere, and what must be true of it afterwards: it works on, or it is closed and says why."""

import contextlib
import gc
import queue
import sys
import threading
import traceback
from time import monotonic

from tests.faults.injecting import Trials
from tests.faults.processes import SOON, open_files

import remora
from remora import samples
from remora.errors import BrokenError, ClosedError
from remora.hal.buffer import Access
from remora.testing.cts.compare import same

SIZE = 256 << 10
DATA = bytes(range(256)) * (SIZE // 256)
INDEX = b"".join(index.to_bytes(4, "little") for index in range(1024))
BUNDLE = samples.load("vector")
#: Commands that a server of these tests takes before it answers.
WINDOW = 8
#: The longest that a step may take once the client was interrupted.
LONGEST = 10.0


class Host:
    """A thread that signals semaphores. It is handed them in one step, which an interruption cannot leave half done."""

    def __init__(self):
        self._gates = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._thread.start()

    def signal(self, semaphore):
        self._gates.put(semaphore)

    def close(self):
        self._gates.put(None)
        self._thread.join(SOON)

    def _run(self):
        while (semaphore := self._gates.get()) is not None:
            with contextlib.suppress(remora.Error):
                semaphore.signal(1)
            semaphore = None


class Work:
    """Everything that waits: connect, load, write, a full window, read, wait for the host, map, close."""

    def __init__(self, uri, host):
        self.uri = uri
        self.host = host
        self.device = None
        self.gate = None

    def __call__(self):
        self.device = remora.open(self.uri)
        self.use()
        self.device.close()

    def use(self):
        """Raises AssertionError for a wrong byte."""
        device, stream = self.device, self.device.queue
        kernel = device.load(BUNDLE)["fill_index"]
        with device.allocate(SIZE) as source, device.allocate(SIZE) as target:
            stream.update(source, DATA)
            stream.fill(target, b"\7")
            stream.update(target.view(64, 16), b"0123456789abcdef")
            for _ in range(WINDOW + 2):
                stream.dispatch(kernel, kernel.grid_for(1024), [target.view(8192, 4096)], (1024, 0))
            stream.copy(source.view(0, 64), target.view(0, 64))
            wanted = bytearray(b"\7" * SIZE)
            wanted[:64], wanted[64:80], wanted[8192:12288] = DATA[:64], b"0123456789abcdef", INDEX
            assert bytes(target.read(0, 80, timeout=SOON)) == wanted[:80]
            assert same(bytes(target.read(timeout=SOON)), wanted)
            self._wait_for_the_host()
            with target.map(Access.READ_WRITE, 0, 128) as mapping:
                mapping.view[:4] = b"map!"
            assert bytes(target.read(0, 4, timeout=SOON)) == b"map!"
            event = device.event()
            event.signal()
            event.wait(SOON)
            stream.wait_idle(SOON)

    def _wait_for_the_host(self):
        self.gate = gate = self.device.semaphore()
        point = self.device.queue.barrier(wait=gate.at(1))
        self.host.signal(gate)
        point.wait(SOON)

    def was_ended(self):
        """Whether the interruption cost the session."""
        return self.device is not None and "the middle of a step" in str(self.device.host.link.session.failure)

    def check(self):
        """After an interruption: what went wrong, or None. The device works in full, or it has ended and says so at once."""
        if self.device is None:
            return None
        if self.gate is not None:  # an interruption may have come between the operation that waits for it and the signal
            self.host.signal(self.gate)
        begin = monotonic()
        failure = self.device.host.link.session.failure
        try:
            self.use()
            outcome = None
        except (BrokenError, ClosedError) as error:
            outcome = error
        except remora.Error as error:
            return f"the device says {type(error).__name__}: {error}"
        if outcome is not None and self.device.host.link.session.failure is None and not self.device.closed:
            return f"the device lives and says {type(outcome).__name__}: {outcome}"
        if outcome is not None and failure is None and not self.device.closed:
            return f"it was not ended by the interruption, but ended later: {outcome}"
        self.device.close()
        if monotonic() - begin > LONGEST:
            return f"{monotonic() - begin:.1f} s until the device had said {outcome}"
        return None


def left_behind(settle_s=5):
    """Threads and descriptors of remora that this process still has."""
    gc.collect()
    deadline, pause = monotonic() + settle_s, threading.Event()
    while (left := _of_remora()) and monotonic() < deadline:
        pause.wait(0.01)
    return left


def _of_remora():
    """One that never began is no thread: `Thread.start` may leave its object listed when an interruption comes in its own steps."""
    frames = sys._current_frames()
    threads = [
        f"{thread.name}: {' '.join(map(str.strip, traceback.format_stack(frames.get(thread.ident))))}"
        for thread in threading.enumerate()
        if "remora" in thread.name and thread.ident is not None
    ]
    return threads + [name for fd, name in open_files().items() if fd > 2 and ("socket" in name or "eventfd" in name)]


class Interruptions(Trials):
    """Trials whose failures are interruptions of the client; `ended` counts those that cost the session."""

    def __init__(self, server, host):
        self.ended = 0
        self.host = host
        super().__init__(None, server)

    def _plain(self):
        Work(self.uri, self.host)()
        return True

    def attempt(self, name, interrupt):
        """`interrupt(work)` runs the work and interrupts it somewhere."""
        work = Work(self.uri, self.host)
        begin = monotonic()
        try:
            interrupt(work)
        except KeyboardInterrupt:
            pass
        except BaseException as error:
            self.story.append(f"{name}: the client got {type(error).__name__}: {error}")
        self.runs += 1
        try:
            wrong = work.check()
        except BaseException as error:
            wrong = f"afterwards {type(error).__name__}: {error}"
        self.ended += work.was_ended()
        if wrong:
            self.story.append(f"{name}: {wrong}")
            with contextlib.suppress(BaseException):
                work.device.close()
        work = None
        if monotonic() - begin > 2 * LONGEST:
            self.story.append(f"{name}: took {monotonic() - begin:.1f} s")
        gc.collect()
        self._check_left(name)
