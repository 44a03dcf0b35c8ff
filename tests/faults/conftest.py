"""Real servers and clients to break, and a check that what they leave behind in this process is nothing."""

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import pytest

import remora
from remora.testing.server import ServerProcess

#: Seconds for what must happen soon, on a machine that may be busy.
SOON = 20.0


class Lines:
    """The lines that a process prints, as they come."""

    def __init__(self, stream):
        self.seen = []
        self._changed = threading.Condition()
        self._ended = False
        self._stream = stream
        self._thread = threading.Thread(target=self._read, name="lines", daemon=True)
        self._thread.start()

    def _read(self):
        for line in self._stream:
            with self._changed:
                self.seen.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, text, count=1, timeout=SOON):
        """The line with `text` that is the `count`-th such line."""

        def found():
            return [line for line in self.seen if text in line]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count or self._ended, timeout)
            lines = found()
        assert len(lines) >= count, f"no {text!r} ({count}) in {self.seen}"
        return lines[count - 1]

    def close(self):
        self._thread.join(SOON)
        self._stream.close()


class Program:
    """A process of this test that prints lines."""

    def __init__(self, code, *args):
        command = [sys.executable, "-u", "-c", code, *map(str, args)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pid = self.process.pid
        self.lines = Lines(self.process.stdout)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait(SOON)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(SOON)
        self.lines.close()


class Service(ServerProcess):
    """A server process; `address` is its first one."""

    @property
    def address(self):
        return self.addresses[0]

    def session_of(self, number):
        """The process id of the session that began as number `number`."""
        return int(self.wait_for(f"session {number} began", SOON).rsplit("pid ", 1)[1])


@pytest.fixture(autouse=True)
def leaves_nothing():
    """No thread, descriptor or memory file of a client is left behind when its devices are closed."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - threads, lambda: f"threads left: {set(threading.enumerate()) - threads}")
    left = {fd: name for fd, name in open_files().items() if files.get(fd) != name}
    assert not left


def open_files():
    """Descriptor to what it is, for all that are open in this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = str(Path(f"/proc/self/fd/{name}").readlink())
    return found


def wait_until(true, story=lambda: "it did not happen", timeout=SOON):
    """Poll a fact outside this process, which wakes nobody here."""
    pause, deadline = threading.Event(), monotonic() + timeout
    while not true():
        assert monotonic() < deadline, story()
        pause.wait(0.01)


def wait_gone(pid, timeout=SOON):
    """Wait for the end of a process that need not be a child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(timeout * 1000), f"process {pid} lives"
    finally:
        os.close(handle)


@pytest.fixture
def until():
    """until(predicate): wait for a fact outside this process."""
    return wait_until


@pytest.fixture
def gone():
    """gone(pid): wait for the end of a process."""
    return wait_gone


@pytest.fixture(params=["tcp", "unix"])
def scheme(request):
    return request.param


@pytest.fixture
def serve(tmp_path, leaves_nothing):
    """serve(scheme="tcp", **options) -> a running Service; options are those of ServerProcess."""
    with contextlib.ExitStack() as stack:

        def run(scheme="tcp", **options):
            bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/s"
            return stack.enter_context(Service(bind=bind, **options))

        yield run


@pytest.fixture
def client(leaves_nothing):
    """client(code, *args) -> a Program, for clients that are to be stopped or killed."""
    with contextlib.ExitStack() as stack:

        def run(code, *args):
            program = Program(code, *args)
            stack.callback(program.close)
            return program

        yield run


@pytest.fixture
def works():
    """works(uri): a fresh client gets a right answer there."""

    def check(uri):
        with remora.open(uri) as device:
            buffer = device.allocate(4096)
            device.queue.fill(buffer, b"\x5a")
            assert bytes(buffer.read(timeout=SOON)) == b"\x5a" * 4096
            buffer.close()

    return check
