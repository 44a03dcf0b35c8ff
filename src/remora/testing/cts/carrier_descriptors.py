"""Carrier conformance: descriptors that keep their place among bytes that are received as any others (POSIX_FD)."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from remora.carriers.carrier import Capability
from remora.errors import BrokenError, UnsupportedError, UsageError
from remora.testing.cts.carrier_factory import LONG, CarrierFactory, read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TestKeptDescriptors"]


def keeps(factory: CarrierFactory) -> bool:
    """Whether the bytes of its server's end go through a socket, and descriptors with them."""
    return Capability.POSIX_FD in factory.capabilities and not factory.settled


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """(reading end, writing end), closed afterwards."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            os.close(fd)


class TestKeptDescriptors:
    """`keep_fds` and `take_fd`, or a clear refusal."""

    def test_descriptors_are_kept_while_bytes_are_received(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server), pipe() as (read_end, write_end):
            assert server.take_fd() is None
            if not keeps(factory):
                with pytest.raises(UnsupportedError):
                    server.keep_fds(2)
                return
            server.keep_fds(2)
            client.send(b"before")
            client.send_fds(b"one", [write_end], LONG)
            client.send(b"after")
            client.send_fds(b"two", [read_end], LONG)
            assert read_exactly(server, 17) == b"beforeoneaftertwo"
            first, second = server.take_fd(), server.take_fd()
            assert first is not None
            assert second is not None
            assert server.take_fd() is None
            assert not os.get_inheritable(first)
            os.write(first, b"through both")
            assert os.read(second, 100) == b"through both"
            os.close(first)
            os.close(second)

    def test_a_descriptor_is_here_when_its_bytes_are(self, factory: CarrierFactory) -> None:
        if not keeps(factory):
            return
        with factory.pair() as (client, server), pipe() as (_, write_end):
            server.keep_fds(1)
            for number in range(20):
                client.send_fds(bytes([number]), [write_end], LONG)
            for number in range(20):
                with server.receive(LONG) as lease:  # type: ignore[union-attr]
                    assert bytes(lease.view) == bytes([number])
                fd = server.take_fd()
                assert fd is not None
                os.close(fd)
            assert server.receive(0) is None

    @pytest.mark.parametrize("sent", [(1, 1), (1, 1, 1), (3,), (40,)])
    def test_what_nobody_takes_is_limited_and_closed(self, factory: CarrierFactory, sent: tuple[int, ...]) -> None:
        if not keeps(factory):
            return
        read_end, write_end = os.pipe()
        try:
            with factory.pair() as (client, server):
                server.keep_fds(2)
                for count in sent:
                    client.send_fds(b"x", [write_end] * count, LONG)
                if sum(sent) <= 2:
                    assert read_exactly(server, 2) == b"xx"
                else:
                    with pytest.raises(BrokenError, match="more than 2 descriptors"):
                        read_exactly(server, len(sent))
        finally:
            os.close(write_end)
        with open(read_end, "rb") as left:  # noqa: PTH123 - a descriptor
            assert left.read() == b""  # no copy of the other end is left anywhere

    @pytest.mark.parametrize("most", [0, -1, 254])
    def test_a_limit_that_is_none(self, factory: CarrierFactory, most: int) -> None:
        if not keeps(factory):
            return
        with factory.pair() as (_, server), pytest.raises(UsageError, match="1 to 253"):
            server.keep_fds(most)
