"""The session process: forked warm from the parent, it alone opens the devices, and it dies alone (H26)."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from remora.carriers.carrier import Carrier
from remora.errors import BrokenError, DeadlineError, DeviceError, Error
from remora.hal.device import Device
from remora.hal.registry import open_devices
from remora.server.content import ContentStore
from remora.server.content_line import ContentLine, Contents, ParentContents, content_pair
from remora.server.handover import high, move_up, take_over
from remora.server.options import ServeOptions
from remora.server.runner import SessionRunner
from remora.server.slot import DRAIN, JOIN_TIMEOUT, ProcessSlot, confirm_lanes, hear, say_farewell
from remora.session.session import Session
from remora.session.state import Lane, State
from remora.wire.bootstrap import Accept

__all__ = ["open_all", "raise_descriptor_limit", "spawn"]

PR_SET_PDEATHSIG = 1


def spawn(
    session: Session, control: Carrier, accept: Accept, options: ServeOptions, scheme: str, store: ContentStore
) -> ProcessSlot:
    """Fork the process that serves `session`. The control carrier is the child's from here; the parent keeps its descriptor.

    Raises OSError when the system has no room for it; then the carrier is still the caller's and no process is left.
    """
    ends: list[socket.socket] = []
    parent = os.getpid()
    try:
        ends += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends += content_pair()
        pid = os.fork()
    except OSError:
        for end in ends:
            end.close()
        raise
    ours, theirs, line, contents = ends
    if pid == 0:
        code = 1
        try:
            _isolate(parent, {control.fileno(), theirs.fileno(), contents.fileno()})
            line = socket.socket(fileno=high(contents.detach()))
            _serve(session, control, accept, options, theirs, scheme, ParentContents(line))
            code = 0
        except Error as error:
            code = 0 if isinstance(error, BrokenError) else 1
        except BaseException:  # nothing may return into the parent's code
            traceback.print_exc()
        finally:
            os._exit(code)
    theirs.close()
    contents.close()
    client = session.hello.client if session.hello else ""
    return ProcessSlot(accept, client, pid, control, ours, ContentLine(line, store))


def _isolate(parent: int, keep: set[int]) -> None:
    """Leave the parent's world: die with it, close its descriptors, take signals as any program does."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd > 2 and fd not in keep:
            with suppress(OSError):
                os.close(fd)
    raise_descriptor_limit()


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may: a large buffer of the cpu device is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_all(uris: Sequence[str]) -> list[Device]:
    """Every device of every URI; on failure those that were open are closed."""
    devices: list[Device] = []
    try:
        for uri in uris:
            devices += open_devices(uri)
    except BaseException:
        for device in devices:
            device.close()
        raise
    return devices


def _serve(
    session: Session,
    control: Carrier,
    accept: Accept,
    options: ServeOptions,
    supervisor: socket.socket,
    scheme: str,
    contents: Contents,
) -> None:
    control = move_up(control, scheme)
    try:
        devices = open_all(options.devices)
        session.accept(accept)
    except (Error, OSError, RuntimeError, MemoryError) as caught:
        error = caught if isinstance(caught, Error) else DeviceError(f"a device of the server cannot be opened: {caught}")
        session.reject(error)
        control.send_all(session.take(Lane.CONTROL), timeout=1.0)
        return
    control.send_all(session.take(Lane.CONTROL), timeout=1.0)
    try:
        carriers = {Lane.CONTROL: control} | _take_lanes(session, control, supervisor, scheme)
        confirm_lanes(session, carriers)
    except Error as error:
        say_farewell(session, control, error)
        _say_why(session, supervisor)
        return
    runner = SessionRunner(session, carriers, devices, options.limits, contents)

    def on_supervisor() -> None:
        message = supervisor.recv(4096)
        text = message[1:].decode(errors="replace")
        if message[:1] == bytes([DRAIN]):
            timeout, _, reason = text.partition(" ")
            runner.drain(reason, float(timeout))
        else:
            runner.stop(text if message else "the server's parent process is gone")

    runner.link.watch(supervisor.fileno(), on_supervisor)
    runner.serve()
    _say_why(session, supervisor)


def _say_why(session: Session, supervisor: socket.socket) -> None:
    """Tell the parent, for its log, why the session ended."""
    with suppress(OSError):
        supervisor.send(str(session.failure).encode()[:4096], socket.MSG_DONTWAIT)


def _take_lanes(session: Session, control: Carrier, supervisor: socket.socket, scheme: str) -> dict[Lane, Carrier]:
    """The other lanes, from the parent. A client that leaves meanwhile ends the session at once."""
    lanes: dict[Lane, Carrier] = {}
    deadline = monotonic() + JOIN_TIMEOUT
    poll = select.poll()
    poll.register(supervisor, select.POLLIN)
    poll.register(control.fileno(), select.POLLIN)
    while session.state is State.JOINING:
        ready = [fd for fd, _ in poll.poll(max(0.0, deadline - monotonic()) * 1000)]
        if not ready:
            raise DeadlineError(f"the client did not join its lanes within {JOIN_TIMEOUT:g} s")
        if supervisor.fileno() in ready:
            lane, carrier = take_over(supervisor, scheme)
            lanes[lane] = carrier
            session.lane_joined(lane)
        else:
            hear(session, control)
    return lanes
