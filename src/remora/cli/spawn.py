"""A server in a process of its own, for as long as a `with` block runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from remora.errors import BrokenError

__all__ = ["ServerProcess", "server_process"]

#: Seconds that the server has to end after SIGTERM.
STOP_TIMEOUT = 10.0
READY = "listening "


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """Where the server runs and listens."""

    pid: int
    address: str


@contextmanager
def server_process(bind: str, device: str = "cpu") -> Iterator[ServerProcess]:
    """Start `remora serve`, wait until it listens, stop it afterwards. Raises BrokenError when it does not come up."""
    command = [sys.executable, "-m", "remora.cli", "serve", "--bind", bind, "--device", device, "--with-parent"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith(READY):
                process.kill()
                raise BrokenError(f"the server did not start: {line}{process.communicate()[1].strip()}")
            yield ServerProcess(process.pid, line.removeprefix(READY).strip())
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
