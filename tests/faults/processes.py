"""Processes to break, and facts about the system. Waits end by events; only what happens outside of this process is polled."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

from remora.testing.server import ServerProcess

#: Seconds for what must happen soon, on a machine that may be busy.
SOON = 20.0


#: Anonymous maps are not touched when they are made: 256 MiB of zeros would hold the GIL, so that nothing gives a sign of life.
#: Opens the device at argv[1] and does what argv[2] says until it cannot go on; it tells how that ended and exits.
CLIENT = """
import mmap, sys, threading
import remora
from remora import samples

device = remora.open(sys.argv[1])
gate = device.semaphore()

def lent():
    "Whether the server has lent memory: then no bytes come and go."
    return device.host.segments is not None and device.host.link.bulk.bytes_received > 0

def idle():
    print("ready", flush=True)
    while device.queue.timeline.failure is None:
        threading.Event().wait(0.01)
    device.allocate(16)

def wait():
    point = device.queue.barrier(wait=gate.at(1))
    print("ready", flush=True)
    point.wait(20)

def compute():
    spin = device.load(samples.load("faults"))["spin"]
    point = device.queue.dispatch(spin, (1, 1, 1), [])
    print("ready", flush=True)
    point.wait(20)

def upload():
    data = mmap.mmap(-1, 256 << 20)
    buffer = device.allocate(len(data))
    point = device.queue.update(buffer, data)
    while device.link_statistics().bytes_sent < 1 << 20 and not lent():
        threading.Event().wait(0.001)
    print("ready", flush=True)
    while True:
        point.wait(20)
        point = device.queue.update(buffer, data)

def download():
    buffer = device.allocate(256 << 20)
    into = mmap.mmap(-1, 256 << 20)
    point = device.queue.read(buffer, into)
    while device.link_statistics().bytes_received < 1 << 20 and not lent():
        threading.Event().wait(0.001)
    print("ready", flush=True)
    while True:
        point.wait(20)
        point = device.queue.read(buffer, into)

try:
    globals()[sys.argv[2]]()
except remora.Error as error:
    print("ended", type(error).__name__, error, flush=True)
"""


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

        self.wait(lambda: len(self.found(text)) >= count, timeout)
        lines = self.found(text)
        assert len(lines) >= count, f"no {text!r} ({count}) in {self.seen}"
        return lines[count - 1]

    def found(self, text):
        """The lines with `text` so far."""
        return [line for line in self.seen if text in line]

    def wait(self, true, timeout):
        """Wait until it is true, or nothing comes any more."""
        with self._changed:
            self._changed.wait_for(lambda: true() or self._ended, timeout)

    def close(self):
        self._thread.join(SOON)
        self._stream.close()


class Program:
    """A process of this test that prints lines."""

    def __init__(self, code, *args, prefix=()):
        command = [*prefix, sys.executable, "-u", "-c", code, *map(str, args)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pid = self.process.pid
        self.lines = Lines(self.process.stdout)

    def signal(self, number):
        self.process.send_signal(number)

    def write(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end_input(self):
        self.process.stdin.close()

    def kill(self):
        self.process.kill()
        self.process.wait(SOON)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(SOON)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.lines.close()


class Service(ServerProcess):
    """A server process; `address` is its first one. `prefix` is a command that runs it."""

    def __init__(self, *, prefix=(), **options):
        super().__init__(**options)
        self._command = [*prefix, *self._command]

    @property
    def address(self):
        return self.addresses[0]

    def session_of(self, number):
        """The process id of the session that began as number `number`."""
        return int(self.wait_for(f"session {number} began", SOON).rsplit("pid ", 1)[1])


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
