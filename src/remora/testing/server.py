"""Real servers for tests: in a process of their own, or on a thread for loopback. Nothing of them is left afterwards.

    with ServerProcess(device="cpu", bind="tcp://127.0.0.1:0") as server:
        with remora.open(server.uri) as device: ...

A server process ends with the process that started it, whatever ends that: its standard input is a pipe from here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from remora.errors import BrokenError, DeadlineError, UsageError
from remora.server.options import ServeOptions
from remora.server.serve import Server

__all__ = ["ServerProcess", "SharedServer"]

#: Seconds for a start, a stop and any other wait, unless the caller says otherwise. A loaded machine needs many of them.
PATIENCE = 30.0


class ServerProcess:
    """A server in another process. `with` or `start()` starts it and returns once it listens; `close()` ends it.

    `device` and `bind` are one URI or several; the other options are those of `python -m remora.server`, times in seconds, and
    `flags` are more words of its command line, such as `("--session-memory", "1GiB")`.
    `start` raises BrokenError with the server's output when it ends instead, DeadlineError when it is not ready in `timeout`.
    """

    def __init__(
        self,
        device: str | Sequence[str] = "cpu",
        bind: str | Sequence[str] = "tcp://127.0.0.1:0",
        *,
        shared: bool = False,
        max_sessions: int = 16,
        window: int | None = None,
        keepalive: float | None = None,
        deadline: float | None = None,
        flags: Sequence[str] = (),
        timeout: float = PATIENCE,
    ) -> None:
        self._binds = _several(bind)
        self._timeout = timeout
        command = [sys.executable, "-m", "remora.server", "--until-eof", "--max-sessions", str(max_sessions)]
        for name, values in (("--device", _several(device)), ("--bind", self._binds)):
            for value in values:
                command += [name, value]
        for name, number in (("--window", window), ("--keepalive", keepalive), ("--deadline", deadline)):
            if number is not None:
                command += [name, str(number)]
        self._command = [*command, *(["--shared"] if shared else []), *flags]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False

    # -- life -----------------------------------------------------------------------------------------------------------------

    def start(self) -> ServerProcess:
        """Start the process and wait until it listens."""
        if self._process is not None:
            raise UsageError("the server was started before; make another")
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, name="remora server output", daemon=True)
        self._reader.start()
        try:
            self.wait_for("ready", self._timeout)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, timeout: float = PATIENCE) -> int:
        """SIGTERM; returns the exit code. Raises DeadlineError when it has not ended in time."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """SIGKILL, as `kill -9`; its sessions' processes die with it. Returns when the server's process is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when it has ended."""
        self._running().send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the end; returns the exit code, negative for a signal."""
        try:
            return self._running().wait(timeout)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"the server did not end within {timeout:g} s; its output:\n{self.log}") from None

    def close(self) -> None:
        """Kill what is left and join everything. Safe to repeat."""
        process, reader = self._process, self._reader
        if process is None or reader is None or process.stdin is None or process.stdout is None:
            return
        for pid in self.session_pids() if process.poll() is None else ():
            _kill(pid)
        process.kill()
        process.wait()
        reader.join(PATIENCE)
        process.stdin.close()
        process.stdout.close()

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *unused: object) -> None:
        self.close()

    # -- facts ----------------------------------------------------------------------------------------------------------------

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, in the order of `bind`, with the ports filled in."""
        return tuple(line.removeprefix("listening ") for line in self._lines if line.startswith("listening "))[: len(self._binds)]

    @property
    def uris(self) -> tuple[str, ...]:
        """What clients open, one for each address."""
        return tuple(f"remote-{address}" for address in self.addresses)

    @property
    def uri(self) -> str:
        """The first of `uris`."""
        return self.uris[0]

    @property
    def pid(self) -> int:
        """The process id of the server's parent process."""
        return self._running().pid

    def session_pids(self) -> tuple[int, ...]:
        """The live processes of sessions."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except FileNotFoundError:
            return ()
        return tuple(pid for pid in map(int, children.split()) if _alive(pid))

    @property
    def log(self) -> str:
        """Everything it has printed."""
        return "\n".join(self._lines)

    def wait_for(self, text: str, timeout: float = PATIENCE, *, count: int = 1) -> str:
        """Wait until `count` lines of output with `text` in them are there; returns the last of those.

        Raises BrokenError when the server ends first, DeadlineError when the time runs out; both show its output.
        """

        def found() -> list[str]:
            return [line for line in self._lines if text in line]

        with self._news:
            self._news.wait_for(lambda: len(found()) >= count or self._ended, timeout)
            lines, ended = found(), self._ended
        if len(lines) >= count:
            return lines[count - 1]
        if ended:
            raise BrokenError(f"the server ended before it said {text!r}; its output:\n{self.log}")
        raise DeadlineError(f"the server did not say {text!r} {count} times within {timeout:g} s; its output:\n{self.log}")

    def wait_for_sessions(self, count: int, timeout: float = PATIENCE) -> None:
        """Wait until exactly `count` session processes are there. Raises DeadlineError when the time runs out."""
        _wait_until(lambda: len(self.session_pids()) == count, f"the server has no {count} session processes", timeout)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise UsageError("the server was not started: use `with`, or call start()")
        return self._process

    def _read(self) -> None:
        process = self._running()
        for line in process.stdout or ():
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class SharedServer:
    """A server with shared sessions on a thread of this process; the only one that `loopback://` can reach.

    `device` and `bind` as in ServerProcess. `server` is the Server itself. Owns the thread; `close()` joins it.
    """

    def __init__(
        self, device: str | Sequence[str] = "cpu", bind: str | Sequence[str] = "loopback://", *, max_sessions: int = 16
    ) -> None:
        self._lines: list[str] = []
        self.server = Server(
            ServeOptions(
                devices=_several(device), bind=_several(bind), max_sessions=max_sessions, shared=True, log=self._lines.append
            )
        )
        self._thread = threading.Thread(target=self.server.serve, name="remora shared server", daemon=True)
        self._started = False

    def start(self) -> SharedServer:
        """Listen and serve on the thread."""
        self.server.start()
        self._started = True
        self._thread.start()
        return self

    @property
    def uris(self) -> tuple[str, ...]:
        """What clients open, one for each address."""
        return tuple(f"remote-{address}" for address in self.server.addresses)

    @property
    def uri(self) -> str:
        """The first of `uris`."""
        return self.uris[0]

    @property
    def log(self) -> str:
        """The log so far."""
        return "\n".join(self._lines)

    def close(self) -> None:
        """Stop, and wait for the thread. Safe to repeat. Raises DeadlineError when a session does not end."""
        if self._started:
            self.server.stop()
            self._thread.join(PATIENCE)
            if self._thread.is_alive():
                raise DeadlineError(f"the shared server did not stop within {PATIENCE:g} s; its log:\n{self.log}")
        else:
            self.server.close()

    def __enter__(self) -> SharedServer:
        return self.start()

    def __exit__(self, *unused: object) -> None:
        self.close()


def _several(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _alive(pid: int) -> bool:
    """Whether the process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait_until(condition: Callable[[], bool], what: str, timeout: float) -> None:
    """Look at a fact outside of this process every few milliseconds until it holds."""
    deadline = monotonic() + timeout
    pause = threading.Event()
    while not condition():
        if monotonic() > deadline:
            raise DeadlineError(f"{what} after {timeout:g} s")
        pause.wait(0.005)
