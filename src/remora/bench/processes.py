"""Other processes: starting them, asking the kernel what they cost, ending them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from remora.errors import DeadlineError, NotFoundError

__all__ = ["Companion", "available", "children", "cpu_ns", "peak_bytes", "shared_bytes"]

#: Seconds that a companion has to end.
END_TIMEOUT = 10.0
#: Linux names the CPU clock of a process (~pid << 3) | 2: nanoseconds, where /proc counts ticks of 10 ms.
SCHEDULER_CLOCK = 2


class Companion:
    """A process that runs `remora.bench.companion`. `ready` is the line that it said first. `close()` or `with` ends it."""

    def __init__(self, role: str, *args: str) -> None:
        command = [sys.executable, "-m", "remora.bench.companion", role, *args]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        try:
            self.ready = self.line()
        except BaseException:
            self.close()
            raise

    def line(self) -> str:
        """The next line that it says. Raises NotFoundError when it ended instead."""
        assert self._process.stdout is not None  # a pipe was asked for
        line = self._process.stdout.readline().strip()
        if not line:
            raise NotFoundError(f"the process {self.pid} of the benchmark ended before it was ready; its messages are above")
        return line

    def ask(self, line: str) -> dict[str, float]:
        """Give a client a line, and take the JSON that it answers."""
        assert self._process.stdin is not None  # a pipe was asked for
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self.line())
        return answer

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self._process.kill()

    def close(self) -> None:
        """End it by SIGTERM. Safe to repeat. Raises DeadlineError when it does not end; then it was killed."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            self._process.communicate(timeout=END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise DeadlineError(f"the process {self.pid} of the benchmark did not end within {END_TIMEOUT:g} s") from None

    def __enter__(self) -> Companion:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.kill()
        self.close()


def children(pid: int) -> list[int]:
    """The child processes, oldest first."""
    found = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return sorted(found)


def cpu_ns(pid: int) -> int:
    """CPU time of a process so far, all threads, user and system, in nanoseconds; 0 for no process."""
    return time.clock_gettime_ns((~pid << 3) | SCHEDULER_CLOCK) if pid else 0


def peak_bytes(pid: int | None = None) -> int:
    """The most memory that was resident at a time."""
    return _status(pid, "VmHWM")


def shared_bytes(pid: int | None = None) -> int:
    """Resident memory of files that lie in memory: a client's has the buffers of its server that it maps."""
    return _status(pid, "RssShmem")


def _status(pid: int | None, key: str) -> int:
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise NotFoundError(f"the kernel does not tell {key}")


def available() -> int:
    """Bytes of memory that new work may use."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
