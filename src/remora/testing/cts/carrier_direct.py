"""Carrier conformance: memory that the peer reads and writes past the stream (REGISTERED_REGIONS, DIRECT_READ, DIRECT_WRITE)."""

from __future__ import annotations

from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from remora.carriers.carrier import Capability
from remora.errors import BrokenError, ClosedError, Error, PeerError, UnsupportedError, UsageError
from remora.testing.cts.carrier_factory import LONG, CarrierFactory, open_descriptors, pattern, read_exactly
from remora.testing.cts.compare import same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remora.carriers.carrier import Carrier
    from remora.carriers.regions import Registered, RemoteRegion

__all__ = ["TestDirectAccess"]

DIRECT = Capability.REGISTERED_REGIONS | Capability.DIRECT_READ | Capability.DIRECT_WRITE
SIZE = 300_001


def passed(region: Registered, owner: Carrier, peer: Carrier) -> tuple[bytes, list[int]]:
    """The key and the descriptors of a region as the peer gets them."""
    if not region.fds:
        owner.send_all(region.key)
        return read_exactly(peer, len(region.key)), []
    owner.send_fds(region.key, region.fds, LONG)
    got = peer.receive_fds(len(region.fds), LONG)
    assert got is not None
    return got


@contextmanager
def shared(factory: CarrierFactory, size: int = SIZE) -> Iterator[tuple[Carrier, Registered, Carrier, RemoteRegion]]:
    """(owner's carrier, its region, the peer's carrier, the region there): the server owns, the client reaches."""
    with factory.pair() as (client, server), server.register(size) as region:
        key, fds = passed(region, server, client)
        with client.attach(key, fds) as remote:
            yield server, region, client, remote


class TestDirectAccess:
    """`register` and `attach`, or a clear refusal."""

    @pytest.fixture(autouse=True)
    def _capable(self, request: pytest.FixtureRequest, factory: CarrierFactory) -> None:
        if DIRECT not in factory.capabilities and "without" not in request.node.name:
            pytest.skip("this carrier has no direct access, and says so")

    def test_a_carrier_without_it_refuses(self, factory: CarrierFactory) -> None:
        if DIRECT in factory.capabilities:
            return
        with factory.pair() as (client, _):
            with pytest.raises(UnsupportedError, match="REGISTERED_REGIONS"):
                client.register(1)
            with pytest.raises(UnsupportedError, match="REGISTERED_REGIONS"):
                client.attach(b"", [])

    def test_what_is_written_is_there_when_a_later_send_has_arrived(self, factory: CarrierFactory) -> None:
        with shared(factory) as (server, region, client, remote):
            assert remote.size == len(region.view) == SIZE
            assert same(region.view, bytes(SIZE))
            for number, (offset, size) in enumerate([(0, 1), (SIZE - 1, 1), (77, 5000), (1, 200_000), (0, SIZE), (9, 0)]):
                data = pattern(size, number)
                remote.write(offset, data)
                client.send(b"w")
                assert read_exactly(server, 1) == b"w"
                assert same(region.view[offset : offset + size], data)

    def test_what_the_owner_wrote_is_read(self, factory: CarrierFactory) -> None:
        with shared(factory) as (server, region, client, remote):
            region.view[:] = pattern(SIZE)
            server.send(b"r")
            assert read_exactly(client, 1) == b"r"
            for offset, size in [(0, SIZE), (5, 70_000), (SIZE - 3, 3), (SIZE, 0)]:
                room = bytearray(size)
                remote.read(offset, memoryview(room))
                assert same(room, pattern(SIZE)[offset : offset + size])
            with pytest.raises(UsageError, match="can be written"):
                remote.read(0, bytes(1))

    def test_both_sides_may_own(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server), client.register(10) as region:
            key, fds = passed(region, client, server)
            with server.attach(key, fds) as remote:
                remote.write(2, b"hello")
                server.send(b"w")
                assert read_exactly(client, 1) == b"w"
                assert bytes(region.view) == b"\0\0hello\0\0\0"

    def test_accesses_in_any_order_against_a_bytearray(self, factory: CarrierFactory) -> None:
        random, oracle = Random(1), bytearray(SIZE)
        with shared(factory) as (_, region, _, remote):
            for step in range(200):
                offset = random.randrange(SIZE)
                size = random.choice((1, 100, 5000, 100_000))
                size = min(size, SIZE - offset)
                if random.random() < 0.5:
                    oracle[offset : offset + size] = data = pattern(size, step)
                    remote.write(offset, data)
                else:
                    room = bytearray(size)
                    remote.read(offset, room)
                    assert same(room, oracle[offset : offset + size])
            assert same(region.view, oracle)

    @pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, SIZE + 1), (SIZE, 1), (SIZE + 1, 0), (1 << 64, 1), (-SIZE, SIZE)])
    def test_a_range_outside_is_refused_and_changes_nothing(self, factory: CarrierFactory, offset: int, size: int) -> None:
        with shared(factory) as (_, region, _, remote):
            with pytest.raises(UsageError, match="not inside"):
                remote.write(offset, b"x" * size)
            with pytest.raises(UsageError, match="not inside"):
                remote.read(offset, bytearray(size))
            assert same(region.view, bytes(SIZE))

    def test_a_size_that_cannot_be_is_refused(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, _):
            for size in (0, -1, 1 << 60):
                with pytest.raises(UsageError, match="register"):
                    client.register(size)

    def test_a_key_that_is_not_sound_is_refused_and_leaves_nothing(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server), server.register(100) as region:
            before = open_descriptors()
            for change in range(len(region.key)):
                key, fds = passed(region, server, client)
                broken = key[:change] + bytes([key[change] ^ 0x41]) + key[change + 1 :]
                with pytest.raises(PeerError):
                    client.attach(broken, fds)
            key, fds = passed(region, server, client)
            with pytest.raises(PeerError):
                client.attach(key[:-1], fds)
            assert open_descriptors() == before

    def test_the_end_of_a_region(self, factory: CarrierFactory) -> None:
        before = open_descriptors()
        with shared(factory) as (_, region, client, remote):
            part = region.view[10:20]
            with pytest.raises(UsageError, match="in use"):
                region.close()
            part.release()
            region.close()
            region.close()
            try:
                remote.write(0, b"reaches nobody")
            except Error:
                assert client.failure is not None  # a carrier may take that for a failure; it may not crash
            remote.close()
            remote.close()
            with pytest.raises((ClosedError, BrokenError)):
                remote.write(0, b"x")
        assert open_descriptors() == before

    def test_a_carrier_that_failed_reaches_no_memory(self, factory: CarrierFactory) -> None:
        with shared(factory) as (_, region, client, remote):
            client.fail(BrokenError("enough"))
            for call in (lambda: remote.write(0, b"x"), lambda: remote.read(0, bytearray(1)), lambda: client.register(1)):
                with pytest.raises(BrokenError, match="enough"):
                    call()
            assert region.view[0] == 0
