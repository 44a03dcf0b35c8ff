"""One session's place in the server: as a process of its own (the default), or as a thread (`--shared`)."""

from __future__ import annotations

import hmac
import os
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from remora.carriers.carrier import Carrier
from remora.errors import DeadlineError, DeviceLostError, Error
from remora.hal.device import Device
from remora.hal.threads import start_thread
from remora.server.content_line import ContentLine, Contents
from remora.server.handover import hand_over
from remora.server.options import SessionLimits
from remora.server.runner import SessionRunner
from remora.session.session import Session
from remora.session.state import Lane, lanes_of
from remora.wire.bootstrap import Accept, Join
from remora.wire.control import Failure, encode_control

__all__ = ["DRAIN", "JOIN_TIMEOUT", "ProcessSlot", "Slot", "ThreadSlot", "confirm_lanes", "hear", "say_farewell"]

#: Seconds between ACCEPT and the last lane.
JOIN_TIMEOUT = 10.0
#: Seconds that a session's thread has to end when the server closes.
RETIRE_TIMEOUT = 2.0
#: What the parent says to a session process, beside the lanes that it hands over: the first byte of its message.
STOP, DRAIN = 0x00, 0x80


class Slot(ABC):
    """A session from ACCEPT to its end. `fileno` is readable when it has ended."""

    def __init__(self, accept: Accept, client: str) -> None:
        self.session_id = accept.session_id
        self.token = accept.token
        self.client = client
        self.missing = set(lanes_of(accept.bulk)[1:])
        self.dying = False
        """Whether it was killed and its client knows; only the system is still busy with it. Another session may have its place."""

    def takes(self, join: Join) -> bool:
        """Whether a JOIN is for this session, with its token and for a lane that is still missing."""
        return join.session_id == self.session_id and hmac.compare_digest(join.token, self.token) and join.lane in self.missing

    @property
    def place(self) -> str:
        """Where it runs, for the log."""
        return ""

    def joining(self) -> tuple[int, float] | None:
        """While the parent itself waits for lanes: the control lane's descriptor, and when (monotonic) to give up."""
        return None

    @property
    def line(self) -> int:
        """A descriptor that is readable when a session process asks for content or ends; -1 without one."""
        return -1

    def hear(self) -> None:  # noqa: B027  (only a slot with a line has something to hear)
        """The line is readable."""

    def look(self, now: float) -> None:  # noqa: B027  (only a slot that is `joining` has something to look at)
        """The control lane is readable, or the time to join is over."""

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor that is readable when the session has ended."""

    @abstractmethod
    def give_lane(self, lane: Lane, carrier: Carrier) -> None:
        """Hand a joined connection over."""

    @abstractmethod
    def drain(self, reason: str, timeout: float) -> None:
        """Ask the session to end in good order once what it has in flight is done, within `timeout` seconds."""

    @abstractmethod
    def stop(self, reason: str) -> None:
        """Ask the session to end in good order, now."""

    @abstractmethod
    def kill(self) -> None:
        """End it now."""

    @abstractmethod
    def retire(self) -> str:
        """After the end: tell the client the cause if the session could not, let go of everything, and say what happened."""


class ProcessSlot(Slot):
    """The parent's view of a session process.

    The parent keeps the control connection's descriptor: when the process dies, the client hears of the signal from here (H26).
    """

    def __init__(
        self, accept: Accept, client: str, pid: int, control: Carrier, supervisor: socket.socket, line: ContentLine
    ) -> None:
        super().__init__(accept, client)
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)  # a child that was not waited for keeps its number
            os.waitpid(pid, 0)
            supervisor.close()
            line.close()
            raise
        self._control = control.detach()
        self._supervisor = supervisor
        self._line = line

    @property
    def line(self) -> int:
        """See `Slot.line`."""
        return self._line.fileno()

    def hear(self) -> None:
        """See `Slot.hear`. A process that was killed closes its files first; to take down a GiB of memory takes 0.1 s more."""
        self._line.serve()
        if self._line.fileno() < 0 and (number := _killed_by(self.pid)):
            self._tell_death(f"died of {signal.Signals(number).name}")

    @property
    def place(self) -> str:
        """See `Slot.place`."""
        return f", pid {self.pid}"

    def fileno(self) -> int:
        return self._pidfd

    def give_lane(self, lane: Lane, carrier: Carrier) -> None:
        self.missing.discard(lane)
        hand_over(self._supervisor, lane, carrier)

    def drain(self, reason: str, timeout: float) -> None:
        with suppress(OSError):
            self._supervisor.send(bytes([DRAIN]) + f"{timeout} {reason}".encode())

    def stop(self, reason: str) -> None:
        with suppress(OSError):
            self._supervisor.send(bytes([STOP]) + reason.encode())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def retire(self) -> str:
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        story = self._last_words()
        if code:
            story = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            self._tell_death(story)
        os.close(self._control)
        os.close(self._pidfd)
        self._supervisor.close()
        self._line.finish()
        return story

    def _tell_death(self, story: str) -> None:
        if self.dying:
            return
        self.dying = True
        error = DeviceLostError(
            f"the session's process on the server (pid {self.pid}) {story} while it owned the device; "
            "the server and other sessions go on: open the device again",
            origin=f"session {self.session_id}",
        )
        self._tell(error)

    def _tell(self, error: Error) -> None:
        """Tell the client why. What it had sent is read first: a socket closed over unread bytes may take back what it sent."""
        now = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        with suppress(OSError), socket.socket(fileno=os.dup(self._control)) as control:
            control.send(encode_control(Failure(error)), now)
            control.shutdown(socket.SHUT_WR)
            while control.recv(65536, now):
                pass

    def _last_words(self) -> str:
        """How the process says that its session ended."""
        reason = b""
        with suppress(OSError):
            reason = self._supervisor.recv(4096, socket.MSG_DONTWAIT)
        return f"ended: {reason.decode(errors='replace')}" if reason else "ended"


def _killed_by(pid: int) -> int:
    """The signal that a child of this process is dying of; 0 for none. The kernel tells before the child can be waited for."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().split()[-1]) & 0x7F
    except (OSError, ValueError):
        return 0


class ThreadSlot(Slot):
    """A session on a thread of this process. Its devices are its own, because a queue that has failed stays failed (H07)."""

    def __init__(
        self,
        accept: Accept,
        session: Session,
        control: Carrier,
        devices: Sequence[Device],
        limits: SessionLimits,
        contents: Contents,
    ) -> None:
        super().__init__(accept, session.hello.client if session.hello else "")
        self._session = session
        self._carriers = {Lane.CONTROL: control}
        self._devices = devices
        self._limits = limits
        self._contents = contents
        try:
            self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            self._close_devices()
            raise
        self._runner: SessionRunner | None = None
        self._thread: threading.Thread | None = None
        self._deadline = monotonic() + JOIN_TIMEOUT
        session.accept(accept)
        try:
            control.send_all(session.take(Lane.CONTROL), timeout=1.0)
        except Error:
            self._close_devices()
            os.close(self._done)
            raise

    def joining(self) -> tuple[int, float] | None:
        """See `Slot.joining`."""
        control = self._carriers[Lane.CONTROL].fileno()
        return None if self._runner is not None or control < 0 else (control, self._deadline)

    def look(self, now: float) -> None:
        """See `Slot.look`."""
        control = self._carriers[Lane.CONTROL]
        try:
            hear(self._session, control)
            if now >= self._deadline:
                raise DeadlineError(f"the client did not join its lanes within {JOIN_TIMEOUT:g} s")
        except Error as error:
            say_farewell(self._session, control, error)
            self.kill()

    def fileno(self) -> int:
        return self._done

    def give_lane(self, lane: Lane, carrier: Carrier) -> None:
        self.missing.discard(lane)
        self._carriers[lane] = carrier
        self._session.lane_joined(lane)
        if not self.missing:
            try:
                self._runner = self._begin()
            except Error as error:
                say_farewell(self._session, self._carriers[Lane.CONTROL], error)
                self.kill()

    def _begin(self) -> SessionRunner:
        """Run the session on a thread of its own. Raises BusyError when the system has no room for it."""
        runner = SessionRunner(self._session, self._carriers, self._devices, self._limits, self._contents)
        try:
            self._thread = start_thread(lambda: self._run(runner), f"remora session {self.session_id}")
        except Error as error:
            runner.link.fail(error)
            runner.close()
            raise
        return runner

    def _run(self, runner: SessionRunner) -> None:
        try:
            confirm_lanes(self._session, self._carriers)
            runner.serve()
        except Error as error:
            runner.link.fail(error)
        finally:
            runner.close()
            self._close_devices()
            os.eventfd_write(self._done, 1)

    def _close_devices(self) -> None:
        """On the session's thread, once it has one: a kernel that never ends holds up nobody else."""
        for device in self._devices:
            device.close()

    def drain(self, reason: str, timeout: float) -> None:
        if self._runner is not None:
            self._runner.drain(reason, timeout)
        else:
            self.kill()

    def stop(self, reason: str) -> None:
        if self._runner is not None:
            self._runner.stop(reason)
        else:
            self.kill()

    def kill(self) -> None:
        if self._runner is None:
            os.eventfd_write(self._done, 1)
        for carrier in tuple(self._carriers.values()):
            carrier.close()

    def retire(self) -> str:
        if self._thread is not None:
            self._thread.join(RETIRE_TIMEOUT)
            if self._thread.is_alive():  # it will still write to `_done`
                return f"was left behind after {RETIRE_TIMEOUT:g} s: a kernel of it does not end; it ends with this process"
        else:
            self._close_devices()
        for carrier in self._carriers.values():
            carrier.close()
        os.close(self._done)
        failure = self._session.failure
        return f"ended: {failure}" if failure is not None else "ended"


def confirm_lanes(session: Session, carriers: dict[Lane, Carrier]) -> None:
    """Answer JOINED on all lanes but control, which is quiet and goes on as it came; the others stay in this process now."""
    for lane, carrier in carriers.items():
        if lane is not Lane.CONTROL:
            carrier.settle()
            carrier.send_all(session.joined_message(lane), timeout=1.0)


def hear(session: Session, control: Carrier) -> None:
    """Take what the control lane has while lanes are missing. Raises why the session ended."""
    lease = control.receive(0)
    if lease is not None:
        with lease:
            session.receive(Lane.CONTROL, lease.view)
        if session.failure is not None:
            raise session.failure


def say_farewell(session: Session, control: Carrier, error: Error) -> None:
    """End a session that has not begun, and tell the client why if it still listens."""
    session.fail(error)
    if session.pending(Lane.CONTROL):
        with suppress(Error):
            control.send(session.take(Lane.CONTROL))
