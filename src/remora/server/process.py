"""The session process: forked warm from the parent, it alone opens the devices, and it dies alone (H26)."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import traceback
from collections.abc import Sequence
from time import monotonic

from remora.carriers import registry
from remora.carriers.carrier import Carrier
from remora.errors import BrokenError, DeadlineError, Error
from remora.hal.device import Device
from remora.hal.registry import open_devices
from remora.server.runner import SessionRunner
from remora.server.slot import ProcessSlot, confirm_lanes
from remora.session.session import Session
from remora.session.state import Lane
from remora.wire.bootstrap import Accept

__all__ = ["JOIN_TIMEOUT", "open_all", "spawn"]

#: Seconds between ACCEPT and the last lane.
JOIN_TIMEOUT = 10.0
PR_SET_PDEATHSIG = 1


def spawn(session: Session, control: Carrier, accept: Accept, devices: Sequence[str], scheme: str) -> ProcessSlot:
    """Fork the process that serves `session`. The control carrier is the child's from here; the parent keeps its descriptor."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _isolate(parent, {control.fileno(), theirs.fileno()})
            _serve(session, control, accept, devices, theirs, scheme)
            code = 0
        except Error as error:
            code = 0 if isinstance(error, BrokenError) else 1
        except BaseException:  # noqa: BLE001  (nothing may return into the parent's code)
            traceback.print_exc()
        finally:
            os._exit(code)
    theirs.close()
    client = session.hello.client if session.hello else ""
    return ProcessSlot(accept, client, pid, control.detach(), ours)


def _isolate(parent: int, keep: set[int]) -> None:
    """Leave the parent's world: die with it, close its descriptors, take signals as any program does."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue


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
    session: Session, control: Carrier, accept: Accept, uris: Sequence[str], supervisor: socket.socket, scheme: str
) -> None:
    try:
        devices = open_all(uris)
        session.accept(accept)
    except Error as error:
        session.reject(error)
        control.send_all(session.take(Lane.CONTROL), timeout=1.0)
        return
    control.send_all(session.take(Lane.CONTROL), timeout=1.0)
    carriers = {Lane.CONTROL: control} | _take_lanes(session, supervisor, scheme)
    confirm_lanes(session, carriers)
    runner = SessionRunner(session, carriers, devices)

    def on_supervisor() -> None:
        message = supervisor.recv(4096)
        runner.stop(message[1:].decode(errors="replace") if message else "the server's parent process is gone")

    runner.link.watch(supervisor.fileno(), on_supervisor)
    runner.serve()


def _take_lanes(session: Session, supervisor: socket.socket, scheme: str) -> dict[Lane, Carrier]:
    """The two other lanes, from the parent."""
    lanes: dict[Lane, Carrier] = {}
    deadline = monotonic() + JOIN_TIMEOUT
    while len(lanes) < 2:
        supervisor.settimeout(max(0.001, deadline - monotonic()))
        try:
            message, fds, _, _ = socket.recv_fds(supervisor, 4096, 1)
        except TimeoutError:
            raise DeadlineError(f"the client did not join its lanes within {JOIN_TIMEOUT:g} s") from None
        if not fds:
            raise BrokenError("the server stopped before the session began")
        lane = Lane(message[0])
        lanes[lane] = registry.adopt(scheme, fds[0], message[1:].decode())
        lanes[lane].activate()
        session.lane_joined(lane)
    supervisor.settimeout(None)
    return lanes
