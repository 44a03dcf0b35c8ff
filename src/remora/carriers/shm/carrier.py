"""A connection that begins as a unix socket and goes on in shared memory once its server says where it stays.

    socket phase   bytes travel through the socket: a greeting costs no mapping, and the socket can be handed to another process
    `settle()`     the server's end: makes two rings, offers them as the first thing that it sends, and uses them from here
    ring phase     the client's end finds the offer where its stream begins, maps the rings, and uses them too

What a client had sent before it saw the offer lies in the socket and is read first. The socket stays open: its end is the peer's
death or goodbye, and descriptors travel through it, beside the bytes in the rings and in no order with them.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import threading
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING

from remora.carriers.carrier import Capability, CarrierState, Keepalive, Span
from remora.carriers.causes import refused
from remora.carriers.endpoint import TICK
from remora.carriers.local import LocalCarrier, connect_socket, descriptors, listen_on
from remora.carriers.shm.direct import attach, register
from remora.carriers.shm.region import DESCRIPTORS, OFFER, Region, make_region, take_region
from remora.carriers.shm.ring import Ring, RingReader, RingWriter
from remora.carriers.spin import spin_for, spin_of
from remora.carriers.stream import NOW, StreamListener, wait_ready
from remora.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.base.uri import Uri
    from remora.carriers.regions import Registered, RemoteRegion

__all__ = ["ShmCarrier", "adopt", "connect", "listen"]

#: What a socket reports when the peer has ended its side, or is gone.
GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR

DIRECT = Capability.REGISTERED_REGIONS | Capability.DIRECT_READ | Capability.DIRECT_WRITE


class ShmCarrier(LocalCarrier):
    """One end. `client`: the end that takes the offer. `spin_us`: None adapts (spin.py)."""

    def __init__(self, sock: socket.socket, local: str, peer: str, spin_us: int | None = None, *, client: bool = False) -> None:
        super().__init__(sock, local, peer, 0)
        self.capabilities |= DIRECT
        self.spin_us = spin_us
        self._spin = spin_for(spin_us)
        self._region: Region | None = None
        self._writer: RingWriter | None = None
        self._reader: RingReader | None = None
        self._bell: select.epoll | None = None  # what the reader sleeps on
        self._sign: select.epoll | None = None  # what others poll
        self._drained = False  # whether the socket holds no more bytes of the stream
        self._room_event = -1
        self._room_waits = 0  # threads that wait for room without the turn
        self._arming = threading.Lock()  # held where the inbox is held for a moment only
        self._first = client  # whether the offer may still come
        if client:
            self._take_tick = self._take_first

    # -- the move to shared memory ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        if self._region is not None:
            return
        with self._lock:
            if self._failure is not None:
                raise self._failure.copy()
            if self._state is not CarrierState.ACTIVE:
                raise UsageError("call activate() before settle()")
            if self._sends or self._pending_slots:
                raise UsageError("settle() before the first send: a client looks for shared memory where the stream begins")
        try:
            region = make_region()
        except OSError as error:
            raise refused(self.peer, error) from error
        try:
            self.send_fds(region.offer, region.fds, timeout=TICK * 10)
        except BaseException:
            region.close()
            raise
        try:
            self._use(region, region.to_maker, region.to_taker)
        except OSError as error:
            raise self._broke(error) from error

    def _take_first(self, room: Span, flags: int = 0) -> int:
        """The client's first receive: the offer, or bytes, and then there will be none."""
        data, rights, _, _ = self._sock.recvmsg(
            len(room), socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize), flags | socket.MSG_CMSG_CLOEXEC
        )
        fds = descriptors(rights)
        if not fds:
            memoryview(room)[: len(data)] = data
            self._first, self._take_tick = False, self._recv_into
            return len(data)
        if len(data) < OFFER.size:
            data += self._sock.recv(OFFER.size - len(data), NOW)
        region = take_region(data, fds)
        self._drained = True
        self._use(region, region.to_taker, region.to_maker)
        return self._wait_ring(room) if not flags else self._sleep(room, 0)

    def _use(self, region: Region, incoming: Ring, outgoing: Ring) -> None:
        """From here on both directions go through the rings."""
        try:
            self._bell, self._sign = select.epoll(2, select.EPOLL_CLOEXEC), select.epoll(2, select.EPOLL_CLOEXEC)
            self._bell.register(incoming.data_event, select.EPOLLIN | select.EPOLLET)
            self._sign.register(incoming.data_event, select.EPOLLIN)
            for epoll in (self._bell, self._sign):
                epoll.register(self._sock, select.EPOLLRDHUP | (0 if self._drained else select.EPOLLIN))
            self._reader, writer = RingReader(incoming), RingWriter(outgoing)
        except BaseException:
            for made in (self._bell, self._sign):
                if made is not None:
                    made.close()
            region.close()
            raise
        self._region = region
        self._take_tick = self._wait_ring if self._drained else self._take_either
        self._room_event = outgoing.room_event
        self._writer = writer

    def keep_fds(self, most: int) -> None:
        if self._region is not None or self._first:
            raise UnsupportedError(f"{self.local} passes descriptors beside its bytes: use receive_fds", origin=self.peer)
        super().keep_fds(most)

    def detach(self) -> int:
        if self._region is not None:
            raise UnsupportedError("this carrier has settled in shared memory: it stays in this process", origin=self.peer)
        return super().detach()

    def fileno(self) -> int:
        reader, sign = self._reader, self._sign
        if self._region is None or reader is None or sign is None or self._state is CarrierState.CLOSED:
            return super().fileno()
        if not reader.watched:
            self._be_watched(reader)
        return sign.fileno()

    def _be_watched(self, reader: RingReader) -> None:
        """From now on the descriptor says what is there. A thread that receives sees to it itself, once it is woken."""
        reader.watched = True
        with self._arming:
            if not self._take_inbox():
                reader.wake()
                return
            try:
                reader.rest()
            finally:
                self._end_inbox(None)
                if self._failure is not None:
                    self._dispose_alone()

    def _take_held_inbox(self) -> None:
        with self._arming:  # a `fileno` in another thread gives it back at once
            if not self._take_inbox():
                raise self._crowded()

    def room_fileno(self) -> tuple[int, int]:
        if self._writer is None or self._region is None or self._state is CarrierState.CLOSED:
            return super().room_fileno()
        return self._room_event, select.POLLIN

    def register(self, size: int) -> Registered:
        if self._failure is not None:
            raise self._failure.copy()
        return register(size, self.local)

    def attach(self, key: bytes, fds: Sequence[int]) -> RemoteRegion:
        return attach(key, fds, self.local, self.peer, lambda: self._failure)

    # -- primitives ------------------------------------------------------------------------------------------------------------

    def _put(self, spans: Sequence[Span]) -> int:
        writer = self._writer
        if writer is None:
            return super()._put(spans)
        count = writer.put(spans)
        if not count and any(len(span) for span in spans):
            raise BlockingIOError
        return count

    def _put_wait(self, spans: Sequence[Span]) -> int:
        if self._writer is None:
            return super()._put_wait(spans)
        if self._failure is not None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return self._writer.put(spans) or (self._wait_room(TICK) and self._put(spans)) or _nothing()

    def _wait_room(self, timeout: float | None) -> bool:
        writer = self._writer
        if writer is None:
            return super()._wait_room(timeout)
        with self._lock:
            if self._failure is not None:
                return True
            self._room_waits += 1
        try:
            return self._wait_ring_room(writer, timeout)
        except OSError as error:
            self._broke(error)
            return True
        finally:
            with self._lock:
                self._room_waits -= 1
            self._dispose_alone()

    def _wait_ring_room(self, writer: RingWriter, timeout: float | None) -> bool:
        if not writer.full():
            return True
        poll = select.poll()
        poll.register(self._room_event, select.POLLIN)
        poll.register(self._sock, 0)
        ready = dict(poll.poll(None if timeout is None else max(timeout, 0) * 1000))
        if set(ready) - {self._room_event}:
            writer.give_up()
        return bool(ready)

    def _take_both(self) -> bool:
        return not self._room_waits and super()._take_both()

    def _take_soon(self, room: Span, timeout: float) -> int:
        reader = self._reader
        try:
            if self._drained and reader is not None:
                return self._wait_ring(room, timeout) if timeout > 0 else reader.take(room) or self._sleep(room, 0)
            if reader is not None:
                return self._take_either(room, timeout)
            if timeout > 0 and not wait_ready(timeout, (self._sock.fileno(), select.POLLIN)):
                return -1
            return self._take_first(room, NOW) if self._first else self._recv_into(room, 0, NOW)
        except BlockingIOError:
            return -1

    def _wait_ring(self, room: Span, timeout: float = TICK) -> int:
        """As `_take_tick`, once all bytes come through the ring: take what is there, or look for a moment, or sleep."""
        reader, spin = self._reader, self._spin
        assert reader is not None  # set before this method is used
        self._taking = True
        if spin is None:
            return reader.take(room, arm=True) or self._sleep(room, timeout)
        if count := reader.take(room, arm=not spin.looks):
            return count
        began = perf_counter_ns()
        if spin.looks and reader.look(began + spin.look_ns):
            spin.found(perf_counter_ns() - began)
            return reader.take(room) or self._sleep(room, 0)  # a peer that lies takes back what was seen
        try:
            return (spin.looks and reader.take(room, arm=True)) or self._sleep(room, timeout)
        finally:
            spin.slept(perf_counter_ns() - began)

    def _sleep(self, room: Span, timeout: float) -> int:
        """The ring is armed, or `timeout` is 0: the count, 0 at the end of the stream, BlockingIOError when nothing came."""
        reader, bell = self._reader, self._bell
        assert reader is not None
        assert bell is not None  # both set before this method is used
        self._taking = False  # an interruption of this sleep loses nothing
        ready = bell.poll(timeout, 2)
        self._taking = True
        if count := reader.take(room):
            return count
        deadline = monotonic() + timeout if timeout else 0.0
        while ready:
            if any(events & GONE for _, events in ready):
                return 0
            if (timeout := deadline - monotonic()) <= 0:
                break
            # a signal for bytes that were taken before it came
            if count := reader.take(room, arm=True):
                return count
            self._taking = False
            ready = bell.poll(timeout, 2)
            self._taking = True
            if count := reader.take(room):
                return count
        raise BlockingIOError

    def _take_either(self, room: Span, timeout: float = TICK) -> int:
        """The server's receive until the client uses the rings: as `_sleep`, from the socket or from the ring."""
        reader, bell = self._reader, self._bell
        assert reader is not None
        assert bell is not None  # both set before this method is used
        self._taking = True
        if (count := self._drain_socket(room)) >= 0:
            return count
        if reader.arm():
            self._taking = False  # an interruption of this sleep loses nothing
            bell.poll(timeout, 2)
            self._taking = True
        if (count := self._drain_socket(room)) < 0:
            raise BlockingIOError
        return count

    def _drain_socket(self, room: Span) -> int:
        """The server's receive until the client uses the rings: the count, 0 at the end of the stream, -1 for nothing yet.

        Bytes in the ring mean that the socket has got all that it will get.
        """
        assert self._reader is not None  # set before this method is used
        last = self._reader.waiting()
        try:
            count = self._recv_into(room, 0, NOW)
        except BlockingIOError:
            count = -1
        if count > 0 or not (last or (count == 0 and self._reader.waiting())):
            return count
        self._drained, self._take_tick = True, self._wait_ring
        for epoll in (self._bell, self._sign):
            assert epoll is not None  # made with the reader
            epoll.modify(self._sock, select.EPOLLRDHUP)
        return self._reader.take(room) or -1  # a peer that lies takes back what was seen

    def _interrupt(self) -> None:
        if self._region is not None and self._reader is not None:
            self._reader.leave()
        super()._interrupt()

    def _dispose(self) -> None:
        super()._dispose()
        region, self._region = self._region, None
        if region is not None and self._bell is not None and self._sign is not None:
            self._bell.close()
            self._sign.close()
            region.close()


def _nothing() -> int:
    raise BlockingIOError


def connect(uri: Uri, *, timeout: float, keepalive: Keepalive) -> ShmCarrier:  # noqa: ARG001 - nothing to keep alive
    """Connect within `timeout` seconds."""
    spin_us = spin_of(uri)
    return ShmCarrier(connect_socket(uri, timeout), f"shm://?pid={os.getpid()}", f"shm://{uri.place}", spin_us, client=True)


def listen(uri: Uri, *, keepalive: Keepalive, backlog: int) -> StreamListener:  # noqa: ARG001 - nothing to keep alive
    """Listen on a path that nobody else listens on."""
    spin_us = spin_of(uri)
    return listen_on(uri, backlog, lambda sock, local, peer: ShmCarrier(sock, local, peer, spin_us))


def adopt(fd: int, peer: str, spin_us: int | None = None) -> ShmCarrier:
    """Take over the server's end of a connection that has not settled."""
    sock = socket.socket(fileno=fd)
    return ShmCarrier(sock, f"shm://{sock.getsockname() or ''}", peer, spin_us)
