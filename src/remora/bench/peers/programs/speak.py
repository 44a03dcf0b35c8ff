"""How a program of the comparison talks to the benchmark, and how everybody is timed. Only the standard library, for any venv.

A program has two ends. The client is started by the benchmark and starts its server itself; both speak lines of JSON:

    benchmark -> client   {"measure": "rtt", "count": 3000, "seconds": 2.0}
    client -> benchmark   {"ns": [...]}  or  {"error": "why not"}
    server -> client      {"address": ..., ...}   its first line, when it listens

The first line of a client is {"import_s", "memory_bytes", "ready_s", "server_pids"}. A program prints nothing else on its standard
output: what libraries print goes to standard error.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

MIB = 1 << 20
#: Bytes of each array of the whole job; tests want less.
ARRAY_BYTES = int(os.environ.get("REMORA_BENCH_ARRAY_MIB", "64")) * MIB
PR_SET_PDEATHSIG = 1
CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWNET = 0x0400_0000, 0x1000_0000, 0x4000_0000
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
#: Operations of one pipelined run, at most.
MOST_PIPELINED = 20_000
#: Two arrays repeat these 1,024 values, so their sum repeats as well.
PATTERN = 1024

imported: dict[str, float] = {}
began = time.monotonic()
_lines: TextIO = sys.stdout


class Work:
    """What a client does. A subclass connects in its constructor; what it leaves out is told by NotImplementedError."""

    server_pids: Sequence[int] = ()
    """The processes that run the work, for kill -9."""

    def small(self) -> None:
        """The smallest operation that the server executes, and its answer."""
        raise NotImplementedError

    def pipeline(self, count: int) -> None:
        """`count` small operations, none waited for but the last."""
        raise NotImplementedError

    def prepare(self, size: int) -> None:
        """Make ready for transfers of `size` bytes."""
        raise NotImplementedError

    def upload(self) -> None:
        """All bytes into the server's memory, and its word that it has them."""
        raise NotImplementedError

    def download(self) -> None:
        """All bytes back into the client's memory."""
        raise NotImplementedError

    def whole(self, left: memoryview, right: memoryview) -> Any:
        """Upload both arrays, add them as float32 there, and return the sum as a buffer of the client's memory."""
        raise NotImplementedError

    def close(self) -> None:
        """End the server."""


# -- processes --------------------------------------------------------------------------------------------------------------------


@contextmanager
def importing() -> Iterator[None]:
    """Times the import of the library that stands inside."""
    begin = time.perf_counter()
    yield
    imported["import_s"] = time.perf_counter() - begin
    imported["memory_bytes"] = resident()


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(file: str, *words: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start another end of the program, and wait for its first line."""
    command = [sys.executable, file, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # a pipe was asked for
    line = process.stdout.readline()
    if not line:
        raise OSError(f"the {words[0]} ended before it listened: exit code {process.wait()}")
    return process, json.loads(line)


def with_descendants(pid: int) -> list[int]:
    """A process, its children, theirs and so on."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def own_standard_output() -> None:
    """Keep the standard output for the lines; what libraries print goes to standard error."""
    global _lines
    _lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)


def say(**values: Any) -> None:
    """One line of JSON."""
    _lines.write(json.dumps(values) + "\n")
    _lines.flush()


def until_end_of_input() -> None:
    """A server's main thread: wait for whoever started it to close the pipe."""
    while os.read(0, 1):
        pass


def be_alone() -> None:
    """Move this process into a network namespace that has nothing but `lo`, on a host of the name `localhost`.

    Raises OSError where that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET | CLONE_NEWUTS | (CLONE_NEWUSER if user else 0)):
        raise OSError(
            ctypes.get_errno(), "it needs a network namespace of its own: run the benchmark as root, or allow user namespaces"
        )
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    socket.sethostname("localhost")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_RUNNING))


# -- measuring --------------------------------------------------------------------------------------------------------------------


def timed(call: Callable[[], object], count: int, seconds: float) -> list[int]:
    """Nanoseconds of each of at most `count` calls, of fewer when they take longer than `seconds`, but of three."""
    clock, samples = time.perf_counter_ns, list[int]()
    end = clock() + int(seconds * 1e9)
    while len(samples) < count and (len(samples) < 3 or clock() < end):
        begin = clock()
        call()
        samples.append(clock() - begin)
    return samples


def pipelined(work: Work, seconds: float) -> dict[str, Any]:
    """Longer and longer runs until one takes a good part of the time."""
    count = 50
    while True:
        begin = time.perf_counter_ns()
        work.pipeline(count)
        took = time.perf_counter_ns() - begin
        if took > seconds * 2.5e8 or count >= MOST_PIPELINED:
            return {"ns": [took], "count": count}
        count = min(MOST_PIPELINED, count * 4)


def arrays() -> tuple[memoryview, memoryview, bytes]:
    """Two float32 arrays, and their sum."""
    count = ARRAY_BYTES // 4 // PATTERN
    left = [float(index) for index in range(PATTERN)]
    right = [float(3 * index + 1) for index in range(PATTERN)]
    both = [one + other for one, other in zip(left, right, strict=True)]
    first, second, total = (struct.pack(f"{PATTERN}f", *values) * count for values in (left, right, both))
    return memoryview(bytearray(first)), memoryview(bytearray(second)), total


def whole(work: Work, count: int, seconds: float) -> dict[str, Any]:
    """The whole job, one run to warm up; every result is compared."""
    left, right, total = arrays()
    samples: list[int] = []
    end = time.monotonic() + seconds
    while len(samples) < 1 + count and (len(samples) < 2 or time.monotonic() < end):
        begin = time.perf_counter_ns()
        result = work.whole(left, right)
        samples.append(time.perf_counter_ns() - begin)
        if memoryview(result).cast("B") != total:
            raise ValueError("the sum is wrong")
        del result
    return {"ns": samples[1:]}


def notice(work: Work) -> dict[str, Any]:
    """Small operations until one fails, because somebody kills the server meanwhile."""
    say(waiting=True)
    while True:
        try:
            work.small()
        except BaseException as error:
            return {"noticed": time.monotonic(), "how": f"{type(error).__name__}: {error}"[:200]}


def measure(work: Work, request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request."""
    count, seconds = request.get("count", 1), request.get("seconds", 1.0)
    match request["measure"]:
        case "rtt":
            timed(work.small, max(3, count // 10), seconds / 4)
            return {"ns": timed(work.small, count, seconds)}
        case "pipelined":
            return pipelined(work, seconds)
        case "prepare":
            work.prepare(request["bytes"])
            return {}
        case "upload" | "download" as what:
            call = work.upload if what == "upload" else work.download
            call()
            return {"ns": timed(call, count, seconds)}
        case "whole":
            return whole(work, count, seconds)
        case "notice":
            return notice(work)
        case other:
            raise ValueError(f"nobody measures {other!r}")


def client(make: Callable[[], Work]) -> None:
    """The client's main function: connect, say so, and do what it is told until its input ends."""
    own_standard_output()
    die_with_parent()
    if "alone" in sys.argv[1:]:
        be_alone()
    begin = float(os.environ.get("REMORA_BENCH_BEGAN", "0")) or time.monotonic()
    work = make()
    work.small()
    say(**imported, ready_s=time.monotonic() - begin, server_pids=list(work.server_pids))
    for line in sys.stdin:
        try:
            answer = measure(work, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        say(**answer)
    work.close()
