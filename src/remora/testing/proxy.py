"""A TCP proxy that is as far away as you say.

    with DelayProxy(server.address, 0.02) as proxy:      # 20 ms each way, 40 ms there and back
        carrier = connect(proxy.address)
        proxy.stall(); proxy.resume(); proxy.half_close(Direction.UP); proxy.cut()
    proxy.hold(1, Direction.DOWN); proxy.release(1, Direction.DOWN)      # one direction of one connection

It loses nothing, keeps the order and has no bandwidth of its own: bytes read at t leave at t + delay, however many they are, up to
`held_bytes` in each direction of a connection; then it stops reading, as a full network does. The handshake of TCP is not delayed.
One thread does everything; a command is carried out when the call returns.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections import deque
from concurrent.futures import Future
from enum import Enum
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from remora.base.uri import parse_uri, split_host_port
from remora.errors import ClosedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["DelayProxy", "Direction"]

READ_BYTES = 1 << 20
#: Seconds for a connection to the target, and for a command or close to be carried out.
CONNECT_TIMEOUT = 5.0
COMMAND_TIMEOUT = 10.0
RESET = struct.pack("ii", 1, 0)


class Direction(Enum):
    """UP is from the client to the target, DOWN is back."""

    UP = "up"
    DOWN = "down"


class Flow:
    """One direction of one connection: what was read and is on its way. An empty block is the end of the stream."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_s: float, held_bytes: int) -> None:
        self.source = source
        self.sink = sink
        self.delay_s = delay_s
        self.held_bytes = held_bytes
        self.blocks: deque[tuple[float, memoryview]] = deque()
        self.held = 0
        self.delivered = 0
        self.source_ended = False
        self.sink_ended = False
        self.sink_full = False
        self.stopped = False

    @property
    def reads(self) -> bool:
        return not self.source_ended and self.held < self.held_bytes

    @property
    def due(self) -> float | None:
        """When the next block leaves; None when there is none, or when only the sink or `stopped` decides."""
        return None if self.sink_full or self.stopped or not self.blocks else self.blocks[0][0]

    def read(self) -> None:
        """Take what the source has sent. Raises OSError when the connection broke."""
        with contextlib.suppress(BlockingIOError):
            data = self.source.recv(READ_BYTES)
            self.source_ended = not data
            self._hold(data)

    def end(self) -> None:
        """End this direction after what is on its way, whatever the source still sends."""
        if not self.source_ended:
            self.source_ended = True
            self._hold(b"")

    def deliver(self, now: float) -> None:
        """Send what is due. Raises OSError when the connection broke."""
        self.sink_full = False
        while self.blocks and self.blocks[0][0] <= now and not self.stopped:
            due, block = self.blocks[0]
            if not block:
                self.sink_ended = True
                self.sink.shutdown(socket.SHUT_WR)
                self.blocks.popleft()
                continue
            try:
                count = self.sink.send(block)
            except BlockingIOError:
                self.sink_full = True
                return
            self.held -= count
            self.delivered += count
            if count < len(block):
                self.blocks[0] = (due, block[count:])
            else:
                self.blocks.popleft()

    def _hold(self, data: bytes) -> None:
        self.blocks.append((monotonic() + self.delay_s, memoryview(data)))
        self.held += len(data)


class Connection:
    """Two flows over two sockets; `number` of them were made before it."""

    def __init__(self, number: int, client: socket.socket, target: socket.socket, delay_s: float, held_bytes: int) -> None:
        self.number = number
        self.sockets = (client, target)
        for sock in self.sockets:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flows = {
            Direction.UP: Flow(client, target, delay_s, held_bytes),
            Direction.DOWN: Flow(target, client, delay_s, held_bytes),
        }

    @property
    def done(self) -> bool:
        return all(flow.sink_ended for flow in self.flows.values())

    def interest(self, sock: socket.socket) -> int:
        """The selector events that matter for this socket now."""
        events = 0
        for flow in self.flows.values():
            if flow.source is sock and flow.reads:
                events |= selectors.EVENT_READ
            if flow.sink is sock and flow.sink_full:
                events |= selectors.EVENT_WRITE
        return events

    def close(self, reset: bool = False) -> None:
        for sock in self.sockets:
            if reset:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.close()


class DelayProxy:
    """Forwards every connection to `target_uri` (tcp) with a fixed one-way delay of `delay_s` seconds in each direction."""

    def __init__(self, target_uri: str, delay_s: float, *, held_bytes: int = 256 << 20) -> None:
        uri = parse_uri(target_uri)
        if uri.scheme != "tcp" or delay_s < 0 or held_bytes < 1:
            raise UsageError(
                f"a proxy needs a tcp:// target, a delay of 0 s or more and room for bytes, got {target_uri}, {delay_s}"
            )
        self._target = split_host_port(uri.place)
        self._delay_s = delay_s
        self._held_bytes = held_bytes
        self._connections: list[Connection] = []
        self._accepted = 0
        self._delivered = dict.fromkeys(Direction, 0)
        self._stalled = False
        self._running = True
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = Thread(target=self._run, name=f"proxy {self.address}", daemon=True)
        self._thread.start()

    def stall(self) -> None:
        """Forward nothing any more, in no direction; connections stay open and senders run into backpressure."""
        self._do(lambda: self._set_stalled(True))

    def resume(self) -> None:
        """Forward again; what is overdue leaves at once."""
        self._do(lambda: self._set_stalled(False))

    def cut(self) -> None:
        """Reset every connection, on both sides, now. New ones are still forwarded."""
        self._do(self._cut)

    def half_close(self, direction: Direction) -> None:
        """End one direction of every connection, after what is on its way; the other one goes on."""
        self._do(lambda: self._end(direction))

    def hold(self, number: int, direction: Direction) -> None:
        """Deliver nothing in one direction of one connection; they are counted from 0, in the order in which they were made.

        What its source sends is still read, as far as there is room: the source finds nothing wrong. Nothing happens when the
        connection has ended.
        """
        self._do(lambda: self._set_stopped(number, direction, True))

    def release(self, number: int, direction: Direction) -> None:
        """Deliver what was held; what is overdue leaves at once."""
        self._do(lambda: self._set_stopped(number, direction, False))

    def delivered_bytes(self, direction: Direction) -> int:
        """Bytes handed over in this direction so far, over all connections."""
        total: int = self._do(lambda: self._total(direction))
        return total

    def held_bytes(self, direction: Direction) -> int:
        """Bytes that are on their way in this direction now."""
        total: int = self._do(lambda: sum(connection.flows[direction].held for connection in self._connections))
        return total

    def connections(self) -> int:
        """How many connections are open."""
        count: int = self._do(lambda: len(self._connections))
        return count

    def close(self) -> None:
        """End every connection, stop listening and join the thread. Idempotent."""
        if self._running:
            self._running = False
            os.eventfd_write(self._wake, 1)
            self._thread.join(COMMAND_TIMEOUT)
            os.close(self._wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- the thread ------------------------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[], Any]) -> Any:
        """Run `work` in the proxy's thread and wait for it."""
        if not self._running:
            raise ClosedError("this proxy was closed", origin=self.address)
        done: Future[Any] = Future()
        self._commands.append((work, done))
        os.eventfd_write(self._wake, 1)
        return done.result(COMMAND_TIMEOUT)

    def _run(self) -> None:
        try:
            while self._running:
                self._turn()
        finally:
            self._listener.close()
            for connection in self._connections:
                connection.close()
            while self._commands:
                self._commands.popleft()[1].set_exception(ClosedError("this proxy was closed", origin=self.address))

    def _turn(self) -> None:
        """Wait for the next thing and do it. select(2) because epoll waits in whole milliseconds."""
        with selectors.SelectSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            if not self._stalled:
                selector.register(self._listener, selectors.EVENT_READ)
                self._watch(selector)
            events = selector.select(self._pause())
        ready = {id(key.data) for key, mask in events if key.data and mask & selectors.EVENT_READ}
        names = {key.fileobj for key, _ in events}
        if self._wake in names:
            os.eventfd_read(self._wake)
        while self._commands:
            work, done = self._commands.popleft()
            done.set_result(work())
        if not self._stalled:
            self._forward(ready)
            if self._listener in names:
                self._accept()

    def _watch(self, selector: selectors.BaseSelector) -> None:
        for connection in self._connections:
            for sock in connection.sockets:
                if events := connection.interest(sock):
                    selector.register(sock, events, sock)

    def _pause(self) -> float | None:
        """Seconds until something is due; None when nothing is."""
        dues = [flow.due for connection in self._connections for flow in connection.flows.values() if flow.due is not None]
        return max(min(dues) - monotonic(), 0) if dues and not self._stalled else None

    def _forward(self, ready: set[int]) -> None:
        for connection in list(self._connections):
            try:
                for flow in connection.flows.values():
                    if id(flow.source) in ready and flow.reads:
                        flow.read()
                for flow in connection.flows.values():
                    flow.deliver(monotonic())
            except OSError:
                self._drop(connection, reset=True)
            else:
                if connection.done:
                    self._drop(connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._listener.accept()
            try:
                target = socket.create_connection(self._target, CONNECT_TIMEOUT)
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
            else:
                self._connections.append(Connection(self._accepted, client, target, self._delay_s, self._held_bytes))
                self._accepted += 1

    def _drop(self, connection: Connection, reset: bool = False) -> None:
        self._connections.remove(connection)
        for direction, flow in connection.flows.items():
            self._delivered[direction] += flow.delivered
        connection.close(reset)

    def _cut(self) -> None:
        for connection in list(self._connections):
            self._drop(connection, reset=True)

    def _end(self, direction: Direction) -> None:
        for connection in self._connections:
            connection.flows[direction].end()

    def _set_stalled(self, stalled: bool) -> None:
        self._stalled = stalled

    def _set_stopped(self, number: int, direction: Direction, stopped: bool) -> None:
        for connection in self._connections:
            if connection.number == number:
                connection.flows[direction].stopped = stopped

    def _total(self, direction: Direction) -> int:
        return self._delivered[direction] + sum(connection.flows[direction].delivered for connection in self._connections)
