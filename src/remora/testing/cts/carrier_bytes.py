"""Carrier conformance: the bytes themselves."""

from __future__ import annotations

import array
import select

import pytest

from remora.carriers.carrier import Lease
from remora.errors import BrokenError, BusyError, DeadlineError, UsageError
from remora.testing.cts.carrier_factory import (
    LONG,
    SHORT,
    CarrierFactory,
    append_all,
    background,
    fill,
    pattern,
    read_exactly,
    write_in_place,
)
from remora.testing.cts.compare import same

__all__ = ["TestBackpressure", "TestReliability", "TestReservations", "TestSendReceive"]


class TestSendReceive:
    """Bytes in, the same bytes out."""

    def test_bytes_arrive_either_way(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            assert client.send(b"hello") == 5
            assert read_exactly(server, 5) == b"hello"
            assert server.send(b"back") == 4
            assert read_exactly(client, 4) == b"back"

    def test_both_ways_at_once(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            client.send(b"one")
            server.send(b"two")
            assert read_exactly(client, 3) == b"two"
            assert read_exactly(server, 3) == b"one"

    def test_many_requests_and_replies(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            for number in range(200):
                message = number.to_bytes(4, "little")
                client.send(message)
                request = read_exactly(server, 4)
                server.send(request, request)
                assert read_exactly(client, 8) == message * 2

    @pytest.mark.parametrize("sizes", [(3, 5), (1, 0, 7), (0, 1), (1, 4000, 17, 0, 300)], ids=str)
    def test_spans_are_gathered_in_order(self, factory: CarrierFactory, sizes: tuple[int, ...]) -> None:
        spans = [pattern(size, seed) for seed, size in enumerate(sizes)]
        with factory.pair() as (client, server):
            assert client.send(*spans) == sum(sizes)
            assert read_exactly(server, sum(sizes)) == b"".join(spans)

    def test_more_spans_than_one_system_call_takes(self, factory: CarrierFactory) -> None:
        spans = [bytes([number % 251]) for number in range(5000)]
        with factory.pair() as (client, server):
            count = client.send(*spans)
            assert 0 < count <= 5000
            if count < 5000:
                client.send_all(*spans[count:], timeout=LONG)
            assert read_exactly(server, 5000) == b"".join(spans)

    def test_every_kind_of_bytes_can_be_sent(self, factory: CarrierFactory) -> None:
        words = memoryview(array.array("I", [1, 2, 3]))
        with factory.pair() as (client, server):
            for span in (b"abc", bytearray(b"abc"), memoryview(b"abc"), words):
                size = memoryview(span).nbytes
                assert client.send(span) == size
                assert read_exactly(server, size) == memoryview(span).tobytes()
                client.send_all(span, span, timeout=LONG)
                assert read_exactly(server, 2 * size) == memoryview(span).tobytes() * 2

    def test_sending_nothing_is_a_usage_error(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            for spans in ((), (b"",), (b"", bytearray())):
                with pytest.raises(UsageError):
                    client.send(*spans)
                with pytest.raises(UsageError):
                    client.send_all(*spans, timeout=LONG)
            assert server.receive(0) is None

    def test_receive_gives_up_when_its_time_is_over(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            for timeout in (0, 0.01, 0.15):
                assert server.receive(timeout) is None
                assert server.receive_into(bytearray(8), timeout) == 0
            client.send(b"late")
            assert read_exactly(server, 4) == b"late"

    def test_receive_into_fills_the_callers_memory(self, factory: CarrierFactory) -> None:
        data = pattern(100_000)
        room = bytearray(len(data))
        with factory.pair() as (client, server):
            client.send_all(data, timeout=LONG)
            filled = 0
            while filled < len(room):
                count = server.receive_into(memoryview(room)[filled:], LONG)
                assert count > 0
                filled += count
            assert same(room, data)
            with pytest.raises(UsageError):
                server.receive_into(bytearray())

    def test_the_descriptor_is_readable_when_bytes_are_there(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            poll = select.poll()
            poll.register(server.fileno(), select.POLLIN)
            assert not poll.poll(0)
            client.send(b"x")
            assert poll.poll(LONG * 1000)
            assert read_exactly(server, 1) == b"x"
            assert not poll.poll(0)
            client.close()
            assert poll.poll(LONG * 1000)

    def test_the_statistics_count_bytes_and_calls(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            client.send(b"12345")
            read_exactly(server, 5)
            sent, received = client.statistics(), server.statistics()
            assert (sent.bytes_sent, sent.sends, sent.bytes_received) == (5, 1, 0)
            assert received.bytes_received == 5
            assert received.receives >= 1


class TestReservations:
    """Reserve, commit and abort."""

    def test_a_committed_reservation_is_sent(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            for number in range(10):
                with client.reserve(3) as reservation:
                    reservation.view[:] = bytes([number] * 3)
                    reservation.commit()
                assert read_exactly(server, 3) == bytes([number] * 3)

    def test_an_aborted_reservation_is_not(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            client.reserve(100).abort()
            with client.reserve(100):
                pass
            client.send(b"next")
            assert read_exactly(server, 4) == b"next"

    def test_reservations_are_sent_in_the_order_of_their_commits(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            first, second, third = (client.reserve(2) for _ in range(3))
            for reservation, data in ((first, b"11"), (second, b"22"), (third, b"33")):
                reservation.view[:] = data
            third.commit()
            second.abort()
            first.commit()
            assert read_exactly(server, 4) == b"3311"

    def test_a_reservation_is_settled_once(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            reservation = client.reserve(2)
            reservation.view[:] = b"ab"
            reservation.commit()
            reservation.abort()
            with pytest.raises(UsageError):
                reservation.commit()
            assert read_exactly(server, 2) == b"ab"
            assert server.receive(SHORT) is None

    def test_sizes_that_can_never_fit_are_usage_errors(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, _):
            most = client.budget().bytes
            for size in (0, -1, most + 1):
                with pytest.raises(UsageError):
                    client.reserve(size)

    def test_h30_the_budget_runs_out_and_comes_back(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            most = client.budget()
            whole = client.reserve(most.bytes)
            assert client.budget() == (0, most.slots - 1)
            with pytest.raises(BusyError):
                client.reserve(1)
            whole.abort()
            assert client.budget() == most
            held = [client.reserve(1) for _ in range(most.slots)]
            with pytest.raises(BusyError):
                client.reserve(1)
            for reservation in held:
                reservation.view[:] = b"x"
                reservation.commit()
            assert read_exactly(server, most.slots) == b"x" * most.slots
            assert client.flush()
            assert client.budget() == most

    def test_reserved_bytes_and_sent_bytes_are_one_stream(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            expected = b""
            for number in range(50):
                data = pattern(number + 1, number)
                if number % 2:
                    assert client.send(data) == len(data)
                else:
                    reservation = client.reserve(len(data))
                    reservation.view[:] = data
                    reservation.commit()
                expected += data
            assert same(read_exactly(server, len(expected)), expected)

    def test_h30_a_commit_never_blocks_and_goes_before_later_sends(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            before = fill(client)
            reservation = client.reserve(4096)
            reservation.view[:] = pattern(4096)
            reservation.commit()
            later = background(lambda: client.send_all(b"later", timeout=LONG))
            got = read_exactly(server, before + 4096 + 5)
            later.result(LONG)
            assert same(got[before:], pattern(4096) + b"later")
            assert client.flush()

    def test_concurrent_reservations_stay_whole(self, factory: CarrierFactory) -> None:
        size, rounds, threads = 64, 30, 6

        def write(number: int) -> None:
            for _ in range(rounds):
                write_in_place(client, bytes([number]) * size)

        with factory.pair() as (client, server):
            reader = background(lambda: read_exactly(server, size * rounds * threads))
            writers = [background(lambda number=number: write(number)) for number in range(threads)]  # type: ignore[misc]
            for writer in writers:
                writer.result(LONG)
            while not client.flush():
                assert client.wait_writable(LONG)
            got = reader.result(LONG)
        blocks = [got[start : start + size] for start in range(0, len(got), size)]
        assert all(len(set(block)) == 1 for block in blocks)
        assert sorted(block[0] for block in blocks) == sorted(list(range(threads)) * rounds)


class TestBackpressure:
    """What happens when the other side does not read, or this one keeps its leases."""

    def test_h30_a_send_without_room_takes_nothing_and_loses_nothing(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            sent = fill(client)
            assert sent > 0
            assert not client.wait_writable(SHORT)
            assert client.budget().bytes == 0
            assert not any(read_exactly(server, sent))
            assert client.wait_writable(LONG)
            assert client.budget().bytes > 0
            assert client.send(b"x") == 1
            assert read_exactly(server, 1) == b"x"

    def test_send_ready_is_seen_by_a_waiting_thread(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            sent = fill(client)
            waiter = background(lambda: client.wait_writable(LONG))
            read_exactly(server, sent)
            assert waiter.result(LONG)

    def test_send_all_waits_for_the_peer(self, factory: CarrierFactory) -> None:
        data = pattern(9 << 20)
        with factory.pair() as (client, server):
            sender = background(lambda: client.send_all(data[:100], data[100:], timeout=LONG))
            assert same(read_exactly(server, len(data)), data)
            sender.result(LONG)

    def test_send_all_stops_at_its_deadline_and_the_cut_stream_fails(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, _):
            with pytest.raises(DeadlineError):
                client.send_all(bytes(64 << 20), timeout=SHORT)
            with pytest.raises(BrokenError, match="cut"):
                client.send(b"x")

    def test_send_all_that_sent_nothing_leaves_the_stream_whole(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            sent = fill(client, rounds=6)
            with pytest.raises(DeadlineError):
                client.send_all(b"x", timeout=SHORT)
            assert client.failure is None
            read_exactly(server, sent)
            client.send_all(b"y", timeout=LONG)
            assert read_exactly(server, 1) == b"y"

    def test_nothing_comes_between_the_bytes_of_send_all(self, factory: CarrierFactory) -> None:
        big = b"\1" * (6 << 20)
        with factory.pair() as (client, server):
            bulk = background(lambda: client.send_all(big, timeout=LONG))

            def poke() -> int:
                """Send single bytes in both ways while the bulk is under way; returns how many."""
                sent = 0
                while not bulk.done():
                    sent += client.send(b"\2")
                    write_in_place(client, b"\2")
                    sent += 1
                    client.wait_writable(SHORT)
                while not client.flush():
                    assert client.wait_writable(LONG)
                client.shutdown()
                return sent

            poker = background(poke)
            got = bytearray()
            collect = background(lambda: append_all(server, got))
            with pytest.raises(BrokenError):
                collect.result(LONG)
            assert big in got
            assert got.count(b"\2") == poker.result(LONG) == len(got) - len(big)
            bulk.result(LONG)

    def test_h30_bytes_under_a_lease_are_not_overwritten(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            held: list[Lease] = []

            def hold() -> Lease:
                client.send(bytes([len(held)]) * 10)
                lease = server.receive(LONG)
                assert lease is not None
                held.append(lease)
                return lease

            with pytest.raises(BusyError):
                background(lambda: [hold() for _ in range(200)]).result(LONG)
            assert len(held) >= 2
            for number, lease in enumerate(held):
                assert bytes(lease.view) == bytes([number]) * 10
                lease.release()
            assert read_exactly(server, 10) == bytes([len(held)]) * 10

    def test_a_second_receiver_is_told_so(self, factory: CarrierFactory) -> None:
        with factory.pair() as (client, server):
            first = background(lambda: read_exactly(server, 1))
            try:
                while server.receive(SHORT) is None:
                    pass
            except BusyError:
                client.send(b"x")
            assert first.result(LONG) == b"x"


class TestReliability:
    """Much, both ways, in order."""

    def test_a_large_transfer_arrives_whole(self, factory: CarrierFactory) -> None:
        data = pattern(1 << 20)
        with factory.pair() as (client, server):
            sender = background(lambda: client.send_all(data, timeout=LONG))
            assert same(read_exactly(server, len(data)), data)
            sender.result(LONG)

    def test_large_transfers_both_ways_at_once(self, factory: CarrierFactory) -> None:
        up, down = pattern(5 << 20, 1), pattern(5 << 20, 2)
        with factory.pair() as (client, server):
            work = [
                background(lambda: client.send_all(up, timeout=LONG)),
                background(lambda: server.send_all(down, timeout=LONG)),
                background(lambda: read_exactly(client, len(down))),
                background(lambda: read_exactly(server, len(up))),
            ]
            results = [future.result(LONG) for future in work]
        assert same(results[2], down)
        assert same(results[3], up)

    def test_a_thousand_small_messages_keep_their_order(self, factory: CarrierFactory) -> None:
        def send() -> None:
            for number in range(1000):
                while not client.send(number.to_bytes(4, "little")):
                    assert client.wait_writable(LONG)

        with factory.pair() as (client, server):
            sender = background(send)
            got = array.array("I", read_exactly(server, 4000))
            sender.result(LONG)
        assert got.tolist() == list(range(1000))
