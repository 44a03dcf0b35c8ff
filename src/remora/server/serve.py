"""The parent process: listener, greetings, slots. Single-threaded, and it never opens a device (H06, H26).

One poll loop: a listener is readable (accept), a greeting is readable (HELLO: fork a session or refuse; JOIN: hand the lane over),
a slot is readable (its session ended). A broken client costs its greeting and nothing else.
"""

from __future__ import annotations

import gc
import os
import secrets
import select
import signal
import threading
from contextlib import suppress
from time import monotonic

from remora.base.uri import parse_uri
from remora.carriers import registry
from remora.carriers.carrier import Capability, Keepalive, Listener
from remora.errors import BusyError, DeadlineError, Error, NotFoundError, PeerError, UnsupportedError
from remora.hal.registry import find_driver
from remora.server.catalog import MACHINE, axes_of, entries_of
from remora.server.content import ContentStore
from remora.server.content_line import StoreContents
from remora.server.grants import FileGrants
from remora.server.greeting import Greeting
from remora.server.options import ServeOptions
from remora.server.probe import probe
from remora.server.process import open_all, spawn
from remora.server.slot import Slot, ThreadSlot
from remora.session.session import Session
from remora.session.state import Lane, Role
from remora.wire.bootstrap import CAPABILITY_BULK, CAPABILITY_SHARED, Accept, Hello, Join
from remora.wire.catalog import DeviceEntry

__all__ = ["Server"]

#: Seconds that a connection has to send its first frame.
GREETING_TIMEOUT = 10.0
MAX_GREETINGS = 64
#: Seconds between two tries when the system has no memory for a call.
PAUSE = 0.05
#: Seconds that sessions have to end when they were told to.
STOP_TIMEOUT = 3.0
STOPPING = "the server is stopping"
#: Seconds after the end of a session of this process at which what it left is collected: its objects refer to each other, and its
#: memory is to go with it. The last of its threads may end a moment later than the session.
SWEEPS = (0.0, 1.0)


class Server:
    """Serves devices to remora clients. `start`, then `serve` until `stop`; `with` stops it.

    Example: `server = Server(ServeOptions(bind=("tcp://127.0.0.1:0",))); server.start(); print(server.addresses); server.serve()`.
    Without `shared`, the process that calls `serve` must have no other threads: it forks.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.entries: tuple[DeviceEntry, ...] = ()
        self._listeners: dict[int, Listener] = {}
        self._greetings: dict[int, Greeting] = {}
        self._slots: dict[int, Slot] = {}
        self.contents = ContentStore(options.cache)
        self._last_id = 0
        self._sweeps: list[float] = []  # when to collect (monotonic)
        self._wake, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._closed = False
        self._closing = threading.RLock()  # a signal handler may call `stop` inside `close`

    @property
    def addresses(self) -> tuple[str, ...]:
        """The bound addresses, ports filled in."""
        return tuple(listener.address for listener in self._listeners.values())

    @property
    def sessions(self) -> tuple[Slot, ...]:
        """The live sessions."""
        return tuple(self._slots.values())

    def start(self) -> None:
        """Read the catalog and listen. Raises what keeps a device from opening or an address from being bound."""
        options = self.options
        try:
            FileGrants(options.limits.files).check()
            if options.shared:
                devices = open_all(options.devices)
                for device in devices:
                    device.close()
                self.entries = entries_of([device.info for device in devices])
            else:
                for uri in options.devices:
                    find_driver(parse_uri(uri).scheme).preload()  # sessions inherit what is imported
                self.entries = probe(options.devices)
            keepalive = Keepalive(options.heartbeat.interval, options.heartbeat.deadline)
            for address in options.bind:
                listener = registry.listen(address, keepalive=keepalive)
                self._listeners[listener.fileno()] = listener
        except BaseException:
            self.close()
            raise

    def serve(self) -> None:
        """Serve until `stop`; then let the sessions finish what they have in flight, end them in good order, and close.

        On the main thread, a signal wakes it whichever thread of the process the system gives the signal to.
        """
        main = threading.current_thread() is threading.main_thread()
        before = signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False) if main else -1
        try:
            while not self._stopping.is_set():
                self._turn(self._timeout())
            self._drain()
        finally:
            if main:
                signal.set_wakeup_fd(before)
            self.close()

    def stop(self) -> None:
        """Let `serve` return, after at most `drain_timeout` for what is in flight; at once when it is called again.

        From any thread or signal handler.
        """
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        with self._closing, suppress(BlockingIOError):
            if not self._closed:
                os.write(self._bell, b"\0")

    def close(self) -> None:
        """Close what is open. Safe to repeat; while another thread is in `serve`, call `stop` and wait for it instead."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for listener in self._listeners.values():
            listener.close()
        for greeting in self._greetings.values():
            greeting.carrier.close()
        for slot in self._slots.values():
            slot.kill()
            self.options.log(f"session {slot.session_id} {slot.retire()}")
        self.contents.close()
        os.close(self._wake)
        os.close(self._bell)

    # -- the loop -------------------------------------------------------------------------------------------------------------

    def _timeout(self) -> float:
        deadlines = [greeting.deadline for greeting in self._greetings.values()]
        deadlines += [deadline for _, deadline, _ in self._joining()]
        return min(deadlines + self._sweeps, default=monotonic() + 60.0) - monotonic()

    def _joining(self) -> list[tuple[int, float, Slot]]:
        """(control lane, deadline, slot) of the sessions that wait for lanes in this process."""
        waiting = ((slot.joining(), slot) for slot in self._slots.values())
        return [(*joining, slot) for joining, slot in waiting if joining is not None]

    def _turn(self, timeout: float) -> None:
        while self._sweeps and self._sweeps[0] <= monotonic():
            self._sweeps.pop(0)
            gc.collect()
        poll = select.poll()
        joining = self._joining()
        lines = {slot.line: slot for slot in self._slots.values() if slot.line >= 0}
        for fd in (self._wake, *self._listeners, *self._greetings, *self._slots, *lines, *(fd for fd, _, _ in joining)):
            poll.register(fd, select.POLLIN)
        for fd, _ in self._poll(poll, timeout):
            if fd == self._wake:
                os.read(fd, 4096)
            elif fd in self._slots:
                self._retire(fd)
            elif fd in self._greetings:
                self._greet(fd)
            elif fd in self._listeners:
                self._accept(self._listeners[fd])
            elif fd in lines:
                lines[fd].hear()
        now = monotonic()
        for _, _, slot in joining:
            if slot.joining() is not None:
                slot.look(now)
        for fd, greeting in tuple(self._greetings.items()):
            if greeting.deadline <= now:
                del self._greetings[fd]
                greeting.refuse(DeadlineError(f"no HELLO within {GREETING_TIMEOUT:g} s"))

    def _poll(self, poll: select.poll, timeout: float) -> list[tuple[int, int]]:
        """What is readable. Without memory for the call nothing is, for a moment."""
        try:
            return poll.poll(max(0.0, timeout) * 1000)
        except OSError:
            self._hurry.wait(PAUSE)
            return []

    def _accept(self, listener: Listener) -> None:
        with suppress(Error):
            carrier = listener.accept(0)
            if carrier is None:
                return
            carrier.activate()
            if len(self._greetings) >= MAX_GREETINGS:  # whoever is silent for longest makes room: a good client greets at once
                longest = self._greetings.pop(next(iter(self._greetings)))
                longest.refuse(BusyError(f"{MAX_GREETINGS} later connections are waiting to greet; try again"))
            self._greetings[carrier.fileno()] = Greeting(carrier, monotonic() + GREETING_TIMEOUT)

    def _greet(self, fd: int) -> None:
        greeting = self._greetings[fd]
        try:
            message = greeting.poll()
            if message is None:
                return
            del self._greetings[fd]
            if isinstance(message, Hello):
                self._open_session(greeting, message)
            elif isinstance(message, Join):
                self._join(greeting, message)
            else:
                raise PeerError(f"a connection that opens with {type(message).__name__}")
        except Error as error:
            self._greetings.pop(fd, None)
            greeting.refuse(error)
        except (OSError, RuntimeError, MemoryError) as error:
            self._greetings.pop(fd, None)
            greeting.refuse(BusyError(f"the server has no room for a session now ({type(error).__name__} {error}); try again"))

    def _open_session(self, greeting: Greeting, hello: Hello) -> None:
        options = self.options
        if self._stopping.is_set():
            greeting.refuse(BusyError(f"{STOPPING}; try again when it is back"))
            return
        if sum(not slot.dying for slot in self._slots.values()) >= options.max_sessions:
            used = f"all {options.max_sessions} sessions of the server are in use"
            greeting.refuse(BusyError(f"{used}; try again later, or serve with more --max-sessions"))
            return
        carrier = greeting.carrier
        offered = CAPABILITY_BULK
        if Capability.POSIX_FD in carrier.capabilities:
            offered |= CAPABILITY_SHARED
        missing = hello.required & ~offered
        if missing:
            raise UnsupportedError(f"the client requires the capabilities {missing:#x}, which this server does not have")
        self._last_id += 1
        session = Session(Role.SERVER, carrier.peer, monotonic(), options.heartbeat)
        session.receive(Lane.CONTROL, memoryview(greeting.frame))
        accept = Accept(
            session_id=self._last_id,
            token=secrets.token_bytes(16),
            capabilities=CAPABILITY_BULK | (hello.capabilities & offered),
            machine=MACHINE,
            axes=axes_of(self.entries),
            command_window=options.command_window,
            staging=options.limits.staging,
            devices=self.entries,
            bulk=min(hello.bulk, options.limits.bulk),
        )
        slot: Slot
        if options.shared:
            slot = ThreadSlot(accept, session, carrier, open_all(options.devices), options.limits, StoreContents(self.contents))
        else:
            slot = spawn(session, carrier, accept, options, parse_uri(carrier.local).scheme, self.contents)
        self._slots[slot.fileno()] = slot
        options.log(f"session {slot.session_id} began: {hello.client or carrier.peer}{slot.place}")

    def _join(self, greeting: Greeting, join: Join) -> None:
        slot = next((slot for slot in self._slots.values() if slot.takes(join)), None)
        if slot is None:
            greeting.refuse(NotFoundError(f"there is no session {join.session_id} that waits for this lane; it may have ended"))
        else:
            slot.give_lane(Lane(join.lane), greeting.carrier)

    def _retire(self, fd: int) -> None:
        slot = self._slots.pop(fd)
        self.options.log(f"session {slot.session_id} {slot.retire()}")
        if self.options.shared:
            self._sweeps = [monotonic() + after for after in SWEEPS]

    def _drain(self) -> None:
        """Let the sessions end, and go on refusing new ones. What does not end in time is killed when the server closes."""
        timeout = self.options.drain_timeout
        if self._slots:
            self.options.log(f"stopping: {len(self._slots)} sessions have {timeout:g} s to finish what is in flight")
        for slot in self._slots.values():
            slot.drain(STOPPING, timeout)
        deadline = monotonic() + timeout + STOP_TIMEOUT
        while self._slots and not self._hurry.is_set() and (left := deadline - monotonic()) > 0:
            self._turn(min(left, self._timeout()))
        if self._hurry.is_set():
            self._end_sessions()

    def _end_sessions(self) -> None:
        for slot in self._slots.values():
            slot.stop(STOPPING)
        deadline = monotonic() + STOP_TIMEOUT
        while self._slots and (left := deadline - monotonic()) > 0:
            self._wait_for_slots(left)

    def _wait_for_slots(self, timeout: float) -> None:
        poll = select.poll()
        for fd in self._slots:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(timeout * 1000):
            self._retire(fd)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()
