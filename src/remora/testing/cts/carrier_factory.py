"""What the carrier conformance suite works with: the factory that a carrier's author gives, and its tools."""

from __future__ import annotations

import array
import gc
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remora.carriers.carrier import Capability, Carrier, Listener
from remora.errors import BusyError, UnsupportedError
from remora.testing.cts.background import background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "LONG",
    "SHORT",
    "CarrierFactory",
    "append_all",
    "background",
    "calls",
    "fill",
    "open_descriptors",
    "pattern",
    "read_exactly",
    "write_in_place",
]

#: Seconds after which a wait has failed, and seconds in which nothing is expected to happen.
LONG = 20.0
SHORT = 0.05


def _no_adopt(_fd: int) -> Carrier:
    raise UnsupportedError("this carrier cannot be handed over")


@dataclass(frozen=True)
class CarrierFactory:
    """How the suite makes carriers.

    listen: a listener on a fresh address. listen_at: a listener on the address given. connect: a carrier to an address.
    unreachable: an address where nobody listens. adopt: a carrier over a detached descriptor, with HANDOVER only.
    settled: whether the server's end settles before it is used; then say the capabilities that are left.
    """

    listen: Callable[[], Listener]
    listen_at: Callable[[str], Listener]
    connect: Callable[[str], Carrier]
    unreachable: Callable[[], str]
    capabilities: Capability = Capability.RELIABLE | Capability.ORDERED
    adopt: Callable[[int], Carrier] = _no_adopt
    settled: bool = False

    @contextmanager
    def created(self) -> Iterator[tuple[Carrier, Carrier]]:
        """Both ends of a connection, in state CREATED; closed at the end."""
        with self.listen() as listener, self.connect(listener.address) as client:
            server = listener.accept(LONG)
            assert server is not None
            with server:
                yield client, server

    @contextmanager
    def pair(self) -> Iterator[tuple[Carrier, Carrier]]:
        """Both ends of a connection, ready to use; closed at the end."""
        with self.created() as (client, server):
            client.activate()
            server.activate()
            if self.settled:
                server.settle()
                assert client.receive(0) is None  # what settling sends to the client is no byte of the stream
            yield client, server


def read_exactly(carrier: Carrier, size: int) -> bytes:
    """`size` bytes from the carrier, through leases. Reads no byte more only if the peer has sent no more."""
    got = bytearray()
    while len(got) < size:
        lease = carrier.receive(LONG)
        assert lease is not None, f"only {len(got)} of {size} bytes came"
        with lease:
            got += lease.view
    assert len(got) == size
    return bytes(got)


def fill(carrier: Carrier, rounds: int = 1) -> int:
    """Send zeros until a send takes nothing, `rounds` times in a row with a pause between; returns how many bytes went.

    A system may still move bytes between its own buffers afterwards, which can make room for a few more.
    """
    block = bytes(1 << 16)
    sent = quiet = 0
    while quiet < rounds:
        count = carrier.send(block)
        if not count and not carrier.wait_writable(SHORT):
            count = carrier.send(block[:1])
            quiet = 0 if count else quiet + 1
        sent += count
    return sent


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes in which a lost, repeated or swapped block shows."""
    words = array.array("I", ((index * 2654435761 + seed) & 0xFFFFFFFF for index in range((size + 3) // 4)))
    return words.tobytes()[:size]


def calls(carrier: Carrier) -> list[Callable[[], Any]]:
    """Every call that needs an active, sound carrier."""
    return [
        lambda: carrier.send(b"x"),
        lambda: carrier.send_all(b"x", timeout=LONG),
        lambda: carrier.receive(LONG),
        lambda: carrier.receive_into(bytearray(1), LONG),
        lambda: carrier.reserve(1),
        lambda: carrier.wait_writable(LONG),
    ]


def write_in_place(carrier: Carrier, data: bytes) -> None:
    """Send through a reservation; waits while the budget is used up."""
    reservation = None
    while reservation is None:
        try:
            reservation = carrier.reserve(len(data))
        except BusyError:
            assert carrier.wait_writable(LONG)
            carrier.flush()
    reservation.view[:] = data
    reservation.commit()


def append_all(carrier: Carrier, into: bytearray) -> None:
    """Append what comes until the failure, which is raised."""
    while lease := carrier.receive(LONG):
        with lease:
            into += lease.view


def open_descriptors() -> int:
    """How many descriptors this process has open, without those of objects that nobody holds any more."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, no paths
