"""Jobs under an injector, and what is left after each: nothing."""

import contextlib
import gc
import threading
from pathlib import Path
from time import monotonic

from tests.faults.job import job
from tests.faults.processes import SOON, Service, open_files, wait_until

import remora

#: Signs of life on both sides of a job, so that what only a heartbeat can notice is noticed soon.
QUERY = "?keepalive=0.3&deadline=1.5&timeout=5"
#: The longest that a job with one failure may take: the deadline of the heartbeat, the timeouts of a connection, and slack.
LONGEST = 15.0


class InjectedService(Service):
    """A server process under an injector."""

    def __init__(self, injector, **options):
        super().__init__(**options)
        self._command[2:3] = ["remora.testing.injected", injector.path]

    @property
    def alive(self):
        return self._running().poll() is None


class Trials:
    """Runs the job with one failure at a time; `story` collects what went wrong, with the point where it did."""

    def __init__(self, injector, server):
        self.injector = injector
        self.server = server
        self.uri = server.uri + QUERY
        self.story = []
        self.runs = self.fired = 0
        self.last = None
        self._raised = []
        self._settle(self._plain)
        self._before = self._facts()

    @contextlib.contextmanager
    def watch_threads(self):
        """An exception that ends a thread is a mistake, and is told with the point that it belongs to."""
        hook = threading.excepthook
        threading.excepthook = self._raised.append
        try:
            yield
        finally:
            threading.excepthook = hook

    def points(self, runs=2):
        """Every point that some of a few runs pass."""
        self.injector.record()
        for _ in range(runs):
            job(self.uri)
        self._settle(lambda: True)
        found = self.injector.points()
        self.injector.off()
        return found

    def try_one(self, point, failure, nth=1):
        """One job with one failure: right or an Error, soon, and nothing left."""
        self.attempt(f"{failure} at pass {nth} of {point.name}", lambda: self.injector.arm(point, failure, nth))

    def attempt(self, name, arm):
        """One job under whatever `arm` arms."""
        begin = monotonic()
        arm()
        try:
            job(self.uri)
            outcome = None
        except (remora.Error, MemoryError) as error:
            outcome = error
        except BaseException as error:
            outcome = error
            self.story.append(f"{name}: the client got {type(error).__name__}: {error}")
        self.runs += 1
        self.fired += bool(self.injector.fired)
        self.injector.off()
        seconds = monotonic() - begin
        if seconds > LONGEST:
            self.story.append(f"{name}: took {seconds:.1f} s and ended with {outcome}")
        self.last = outcome and f"{type(outcome).__name__}: {outcome}"
        outcome = None
        self._check_left(name)
        self._check_next(name)

    def _check_left(self, name):
        try:
            self._settle(lambda: not self._left())
        except AssertionError:
            self.story.append(f"{name}: left {self._left()}")
            self._before = self._facts()
        self.story += [f"{name}: {each.thread.name} died of {each.exc_type.__name__}: {each.exc_value}" for each in self._raised]
        self._raised.clear()

    def _check_next(self, name):
        """The server goes on: the next client is served."""
        try:
            with remora.open(self.uri) as device, device.upload(b"next") as buffer:
                assert bytes(buffer.read(timeout=SOON)) == b"next"
        except remora.Error as error:
            self.story.append(f"{name}: the next client got {error}")
            if not self.server.alive:
                raise AssertionError("\n".join([*self.story, self.server.log])) from None

    def _settle(self, true):
        """Wait for the end of everything that a job had, on both sides."""
        wait_until(lambda: not self.server.session_pids() and (gc.collect(), true())[1], timeout=5)

    def _plain(self):
        job(self.server.uri)
        return True

    def _facts(self):
        pid = self.server.pid
        return {
            "threads": {thread.name for thread in threading.enumerate()},
            "files": set(open_files().items()),
            "threads of the server": set(_names(f"/proc/{pid}/task")),
            "files of the server": set(_links(f"/proc/{pid}/fd")),
        }

    def _left(self):
        now = self._facts()
        return {what: more for what, had in self._before.items() if (more := now[what] - had)}


def _names(folder):
    with contextlib.suppress(FileNotFoundError):
        return [entry.name for entry in Path(folder).iterdir()]
    return []


def _links(folder):
    found = []
    for name in _names(folder):
        with contextlib.suppress(OSError):
            found.append((name, str(Path(folder, name).readlink())))
    return found
