"""Carrier conformance: life, failure, addresses, descriptors."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Any

import pytest

from remora.carriers.carrier import Capability
from remora.errors import BrokenError, BusyError, ClosedError, DeviceError, Error, UnsupportedError, UsageError
from remora.testing.cts.carrier_factory import (
    LONG,
    SHORT,
    CarrierFactory,
    background,
    calls,
    fill,
    open_descriptors,
    read_exactly,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TestDescriptors", "TestErrors", "TestFactory", "TestLifecycle"]


#: More than any system keeps between two ends.
BIG = bytes(64 << 20)


class TestLifecycle:
    """From CREATED to CLOSED, forward only."""

    def test_a_carrier_starts_created_and_becomes_active(self, factory: CarrierFactory) -> None:
        with factory.created() as ends:
            for end in ends:
                assert end.state.name == "CREATED"
                end.activate()
                assert end.state.name == "ACTIVE"
                assert end.failure is None

    def test_activating_twice_is_a_usage_error(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, _):
            with pytest.raises(UsageError):
                client.activate()
            assert client.state.name == "ACTIVE"

    def test_nothing_moves_before_activate(self, factory: CarrierFactory) -> None:
        with factory.created() as (client, _):
            for call in calls(client):
                with pytest.raises(UsageError, match="activate"):
                    call()
            assert client.budget().bytes == 0

    def test_close_is_idempotent_and_final(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, _):
            client.close()
            client.close()
            assert client.state.name == "CLOSED"
            assert client.fileno() == -1
            assert isinstance(client.failure, ClosedError)
            for call in calls(client):
                with pytest.raises(ClosedError):
                    call()

    def test_a_carrier_can_be_closed_before_it_is_activated(self, factory: CarrierFactory) -> None:
        with factory.created() as (client, server):
            client.close()
            with pytest.raises(ClosedError):
                client.activate()
            server.activate()
            with pytest.raises(BrokenError):
                server.receive(LONG)

    def test_the_state_only_moves_forward(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, _):
            client.shutdown()
            assert client.state.name == "DRAINING"
            client.shutdown()
            with pytest.raises(UsageError):
                client.activate()
            client.close()
            client.shutdown()
            assert client.state.name == "CLOSED"

    def test_the_capabilities_are_those_promised(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            assert client.capabilities == server.capabilities
            assert client.capabilities & ~Capability.HANDOVER == factory.capabilities & ~Capability.HANDOVER
            assert factory.settled or client.capabilities == factory.capabilities
            assert Capability.RELIABLE | Capability.ORDERED in client.capabilities

    def test_connections_leave_no_descriptor_behind(self, factory: CarrierFactory) -> None:
        with factory.pair():
            pass
        before = open_descriptors()
        for _ in range(20):
            with factory.pair() as (client, server):
                client.send(b"x")
                assert read_exactly(server, 1) == b"x"
        assert open_descriptors() == before


class TestErrors:
    """H05: one sticky failure, whoever causes it."""

    @pytest.mark.parametrize("blocked", ["receive", "receive_into", "send_all", "wait_writable"])
    def test_h05_fail_wakes_every_blocked_call(self, factory: CarrierFactory, blocked: str) -> None:
        with factory.pair() as (client, _):
            fill(client)
            work: dict[str, Callable[[], Any]] = {
                "receive": client.receive,
                "receive_into": lambda: client.receive_into(bytearray(8)),
                "send_all": lambda: client.send_all(BIG),
                "wait_writable": client.wait_writable,
            }
            waiting = background(work[blocked])
            client.fail(DeviceError("told to"))
            with pytest.raises(DeviceError, match="told to"):
                waiting.result(LONG)

    def test_h05_fail_wakes_everyone_who_waits_to_send(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, _):
            waiting = [background(lambda: client.send_all(BIG)) for _ in range(3)]
            assert client.send(b"x") in (0, 1)
            client.fail(DeviceError("told to"))
            for sender in waiting:
                with pytest.raises(DeviceError, match="told to"):
                    sender.result(LONG)

    def test_h05_the_first_cause_wins_and_stays(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            client.fail(DeviceError("first"))
            client.fail(Error("second"))
            server.close()
            for call in calls(client):
                with pytest.raises(DeviceError, match="first") as caught:
                    call()
                assert caught.value is not client.failure
            with pytest.raises(DeviceError):
                client.flush()
            client.close()
            with pytest.raises(DeviceError, match="first"):
                client.send(b"x")

    def test_h05_the_peer_of_a_failed_carrier_sees_the_end(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            waiting = background(lambda: server.receive(LONG))
            client.fail(Error("done"))
            with pytest.raises(BrokenError):
                waiting.result(LONG)

    def test_the_end_of_the_peer_is_a_sticky_error_that_names_it(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            client.send(b"last words")
            client.close()
            assert read_exactly(server, 10) == b"last words"
            for call in calls(server)[2:]:
                with pytest.raises(BrokenError, match="closed") as caught:
                    call()
                assert server.peer in str(caught.value)

    def test_sending_to_a_peer_that_is_gone_fails(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            server.close()
            with pytest.raises(BrokenError):
                client.send_all(BIG, timeout=LONG)

    def test_what_arrived_before_a_failed_send_can_still_be_read(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            server.send(b"the reason")
            server.close()
            with pytest.raises(BrokenError):
                client.send_all(BIG, timeout=LONG)
            assert read_exactly(client, 10) == b"the reason"
            with pytest.raises(BrokenError):
                client.receive(LONG)

    def test_shutdown_ends_one_side_only(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            reservation = client.reserve(1)
            client.send(b"rest")
            client.shutdown()
            for call in (lambda: client.send(b"x"), lambda: client.send_all(b"x"), lambda: client.reserve(1), reservation.commit):
                with pytest.raises(UsageError):
                    call()
            assert read_exactly(server, 4) == b"rest"
            assert server.send(b"answer") == 6
            with pytest.raises(BrokenError):
                server.receive(LONG)
            assert read_exactly(client, 6) == b"answer"

    def test_shutdown_sends_what_is_kept_first(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            sent = fill(client)
            reservation = client.reserve(5)
            reservation.view[:] = b"final"
            reservation.commit()
            client.shutdown()
            drain = background(lambda: read_exactly(server, sent + 5))
            while not client.flush():
                assert client.wait_writable(LONG)
            assert drain.result(LONG)[sent:] == b"final"
            with pytest.raises(BrokenError):
                server.receive(LONG)

    @pytest.mark.parametrize("blocked", ["receive", "send_all"])
    def test_h05_close_wakes_a_blocked_call(self, factory: CarrierFactory, blocked: str) -> None:
        with factory.pair() as (client, _):
            fill(client)
            waiting = background(client.receive if blocked == "receive" else lambda: client.send_all(BIG))
            client.close()
            with pytest.raises(ClosedError):
                waiting.result(LONG)


class TestFactory:
    """Listeners, addresses and many connections."""

    def test_an_address_where_nobody_listens_is_named(self, factory: CarrierFactory) -> None:
        address = factory.unreachable()
        with pytest.raises(BrokenError, match="server running") as caught:
            factory.connect(address)
        assert address in str(caught.value)

    def test_accept_gives_up_when_its_time_is_over(self, factory: CarrierFactory) -> None:
        with factory.listen() as listener:
            assert listener.accept(0) is None
            assert listener.accept(SHORT) is None

    def test_many_connections_do_not_mix(self, factory: CarrierFactory) -> None:
        with factory.listen() as listener:
            clients = [factory.connect(listener.address) for _ in range(16)]
            servers = [carrier for _ in clients if (carrier := listener.accept(LONG))]
            for number, client in enumerate(clients):
                client.activate()
                client.send(bytes([number]))
            for server in servers:
                server.activate()
            assert sorted(read_exactly(server, 1)[0] for server in servers) == list(range(16))
            for carrier in clients + servers:
                carrier.close()

    def test_closing_a_listener_wakes_accept_and_refuses_the_next(self, factory: CarrierFactory) -> None:
        with factory.listen() as listener:
            waiting = background(listener.accept)
            listener.close()
            listener.close()
            with pytest.raises(ClosedError):
                waiting.result(LONG)
            with pytest.raises(ClosedError):
                listener.accept(LONG)
            with pytest.raises(BrokenError):
                factory.connect(listener.address)
            assert listener.fileno() == -1

    def test_accepted_carriers_outlive_the_listener(self, factory: CarrierFactory) -> None:
        with factory.listen() as listener, factory.connect(listener.address) as client:
            server = listener.accept(LONG)
            assert server is not None
            listener.close()
            with server:
                client.activate()
                server.activate()
                client.send(b"still here")
                assert read_exactly(server, 10) == b"still here"

    def test_an_address_can_be_used_again_but_not_twice_at_once(self, factory: CarrierFactory) -> None:
        with factory.listen() as listener:
            address = listener.address
            with pytest.raises(UsageError, match="cannot listen"):
                factory.listen_at(address)
        with factory.listen_at(address) as listener, factory.connect(address) as client:
            assert listener.address == address
            server = listener.accept(LONG)
            assert server is not None
            with server:
                assert client.peer == address
                assert server.local == address

    def test_the_listener_descriptor_is_readable_when_a_client_waits(self, factory: CarrierFactory) -> None:
        with factory.listen() as listener:
            poll = select.poll()
            poll.register(listener.fileno(), select.POLLIN)
            assert not poll.poll(0)
            with factory.connect(listener.address):
                assert poll.poll(LONG * 1000)
                server = listener.accept(LONG)
                assert server is not None
                server.close()


class TestDescriptors:
    """HANDOVER and POSIX_FD, or a clear refusal."""

    def test_handover_keeps_the_connection(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            if Capability.HANDOVER not in factory.capabilities:
                with pytest.raises(UnsupportedError):
                    client.detach()
                return
            client.send(b"before")
            server.send(b"for the heir")
            fd = client.detach()
            assert client.state.name == "CLOSED"
            with pytest.raises(ClosedError):
                client.send(b"x")
            client.close()
            with factory.adopt(fd) as heir:
                heir.activate()
                heir.send(b"after")
                assert read_exactly(server, 11) == b"beforeafter"
                assert read_exactly(heir, 12) == b"for the heir"

    def test_handover_needs_the_carrier_alone(self, factory: CarrierFactory) -> None:
        if Capability.HANDOVER not in factory.capabilities:
            return
        with factory.pair() as (client, server):
            reservation = client.reserve(1)
            with pytest.raises(BusyError):
                client.detach()
            reservation.abort()
            waiting = background(lambda: client.receive(LONG))
            try:
                fd = client.detach()
            except BusyError:
                server.send(b"x")
                assert waiting.result(LONG) is not None
            else:  # the thread had not begun to receive yet
                os.close(fd)
                with pytest.raises(ClosedError):
                    waiting.result(LONG)

    def test_descriptors_travel_with_their_bytes(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            read_end, write_end = os.pipe()
            try:
                if Capability.POSIX_FD not in factory.capabilities:
                    with pytest.raises(UnsupportedError):
                        client.send_fds(b"x", [write_end])
                    with pytest.raises(UnsupportedError):
                        server.receive_fds(1)
                    return
                client.send_fds(b"two", [write_end, read_end], LONG)
                received = server.receive_fds(2, LONG)
                assert received is not None
                data, fds = received
                assert data == b"two"
                os.write(fds[0], b"through the copy")
                assert os.read(read_end, 100) == b"through the copy"
                for fd in fds:
                    assert not os.get_inheritable(fd)
                    os.close(fd)
            finally:
                os.close(read_end)
                os.close(write_end)
