"""A bulk lane over several connections: chunks of one transfer go over any of them, in any order (H02, H25, H27)."""

import random
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.faults.processes import wait_until
from tests.link.lanes import Ends, connected, facing_strands
from tests.link.test_bulk_ends import GIVEN_UP, every_transfer_ends_once, later, steps
from tests.link.test_schedule import frames_of, head, ignore

import remora
from remora.errors import BrokenError, BusyError, PeerError, UsageError
from remora.hal.threads import start_thread
from remora.link.bulk import BulkLane
from remora.link.incoming import ReceiveTable
from remora.link.link import GRACE
from remora.link.outgoing import SendSchedule
from remora.session.state import Lane
from remora.testing.server import ServerProcess, SharedServer
from remora.wire.bulk import CHUNK, COMPLETE, CREDIT, DATA, START, encode_abort, encode_bulk

MIB = 1 << 20
LARGE = memoryview(bytes(40 * CHUNK))


@contextmanager
def strands(count):
    """Two lanes over `count` connections: (near, far, broken, the pairs of carriers)."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(connected()) for _ in range(count)]
        yield (*stack.enter_context(facing_strands(pairs)), pairs)


# -- the schedule and the table ----------------------------------------------------------------------------------------------------


def test_h02_other_strands_send_only_data_of_transfers_that_began_and_have_credit():
    schedule = SendSchedule()
    schedule.add(1, LARGE[: 3 * CHUNK], ignore, None)
    schedule.add(3, LARGE[: 3 * CHUNK], ignore, 3 * CHUNK)
    schedule.owed.append(encode_bulk(CREDIT, 2, 9))
    assert schedule.next(1) == []
    assert frames_of(schedule.next(0)) == [(CREDIT, 2), (START, 1), (DATA, 1)]
    assert schedule.next(1) == []
    schedule.sent(0, 0.0)
    assert frames_of(schedule.next(0)) == [(START, 3), (DATA, 3)]
    assert frames_of(schedule.next(1)) == [(DATA, 3)]
    assert frames_of(schedule.next(2)) == [(DATA, 3)]
    assert schedule.next(3) == []
    assert schedule.sent(0, 0.0) is None
    assert schedule.sent(2, 0.0) is None
    assert schedule.sent(1, 0.0).transfer_id == 3  # the last strand that was sending some of it
    assert frames_of(schedule.next(0)) == [(COMPLETE, 3)]


@pytest.mark.parametrize("last", [0, 1])
def test_h27_a_transfer_given_up_ends_when_no_strand_sends_it_any_more(last):
    schedule = SendSchedule()
    schedule.add(1, LARGE, ignore, LARGE.nbytes)
    assert schedule.next(0)
    assert schedule.next(1)
    assert schedule.remove(1, GIVEN_UP) == (True, None)
    assert schedule.sent(1 - last, 0.0) is None
    assert schedule.sent(last, 0.0).error is GIVEN_UP
    assert schedule.next(0) == schedule.next(1) == []
    assert schedule.clear() == []


def test_h27_the_end_tells_a_transfer_given_up_while_strands_send_it_once():
    schedule = SendSchedule()
    schedule.add(1, LARGE, ignore, LARGE.nbytes)
    assert schedule.next(0)
    assert schedule.next(1)
    schedule.remove(1, GIVEN_UP)
    assert [outgoing.error for outgoing in schedule.clear()] == [GIVEN_UP]


def take(table, strand, transfer, chunk, total):
    """(what lands, its frame, its place) of one chunk of a transfer."""
    frame = head(DATA, transfer, chunk * CHUNK, min(CHUNK, total - chunk * CHUNK))
    return (*table.data(strand, frame), frame)


@settings(max_examples=60)
@given(data=st.data(), count=st.integers(1, 8))
def test_h02_chunks_land_in_any_order_around_start_and_complete(data, count):
    """The frames of strand 0 in their order, chunks of others at any time, and any order in which they land."""
    total = (count - 1) * CHUNK + 9
    table, room, ended = ReceiveTable(strands=3), bytearray(total), 0
    table.expect(1, memoryview(room), ignore)
    own = [chunk for chunk in range(count) if data.draw(st.booleans())]
    main = ["start", *own, "complete"]
    other, landing = [chunk for chunk in range(count) if chunk not in own], []
    while main or other or landing:
        assert not ended
        what = data.draw(st.sampled_from([name for name, line in (("main", main), ("other", other), ("land", landing)) if line]))
        if what == "land":
            incoming, place, frame = landing.pop(data.draw(st.integers(0, len(landing) - 1)))
            place[:] = bytes([frame.value // CHUNK + 1]) * len(place)
            ended += table.landed(incoming, frame, place) is not None
        elif what == "other":
            landing.append(take(table, 1, 1, other.pop(), total))
        elif (step := main.pop(0)) == "start":
            table.start(head(START, 1, total))
        elif step == "complete":
            ended += table.complete(head(COMPLETE, 1, total)) is not None
        else:  # what strand 0 receives has landed before its next frame
            incoming, place, frame = take(table, 0, 1, step, total)
            place[:] = bytes([step + 1]) * len(place)
            ended += table.landed(incoming, frame, place) is not None
    assert ended == 1
    assert all(room[offset] == offset // CHUNK + 1 for offset in range(0, total, CHUNK))
    assert not table._table


def test_h27_memory_is_untouched_after_the_end_of_a_transfer_that_lands_on_two_strands():
    table = ReceiveTable(strands=2)
    table.expect(1, memoryview(bytearray(2 * CHUNK)), ignore)
    table.start(head(START, 1, 2 * CHUNK))
    first, second = take(table, 0, 1, 0, 2 * CHUNK), take(table, 1, 1, 1, 2 * CHUNK)
    incoming, now = table.remove(1, GIVEN_UP)
    assert not now
    assert table.landed(first[0], first[2], first[1]) is None
    assert table.landed(second[0], second[2], second[1]) is incoming
    assert table.clear() == []


def test_h25_what_other_strands_may_not_bring_is_refused():
    table = ReceiveTable(strands=2)
    table.start(head(START, 1, 2 * CHUNK))
    with pytest.raises(PeerError, match="DATA without credit in the transfer 1, on connection 1"):
        table.data(1, head(DATA, 1, 0, CHUNK))
    table.expect(3, memoryview(bytearray(CHUNK)), ignore)
    with pytest.raises(PeerError, match="DATA before START"):
        table.data(0, head(DATA, 3, 0, CHUNK))
    with pytest.raises(PeerError, match="COMPLETE before"):
        table.complete(head(COMPLETE, 3, CHUNK))
    with pytest.raises(PeerError, match="has 9 bytes, its command says 1048576"):
        table.start(head(START, 3, 9))


# -- lanes -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4, 8])
def test_h02_one_transfer_goes_over_all_connections(count):
    ends, data, room = Ends(), random.Random(2).randbytes(64 * CHUNK + 5), bytearray(64 * CHUNK + 5)
    with strands(count) as (near, far, broken, pairs):
        far.expect(1, memoryview(room), ends.of("arrived"))
        near.send(1, memoryview(data), ends.of("sent"))
        assert ends.wait("arrived", "sent") == [[None], [None]]
        assert room == data
        assert not broken
        moved = [carriers[0].statistics().bytes_sent for carriers in pairs]
    assert sum(map(bool, moved)) > 1  # how many of the threads get a core in time is the system's affair
    assert sum(moved) > len(data)


@pytest.mark.parametrize("frame", [encode_bulk(START, 1, 9), encode_bulk(CREDIT, 1, 9), encode_abort(1, GIVEN_UP)])
def test_h25_another_connection_carries_data_only(frame):
    with strands(2) as (_, far, broken, pairs):
        pairs[1][0].send_all(frame, timeout=5)
        for thread in far._threads:
            thread.join(10)
        assert "on connection 1, which carries DATA only" in broken[0].message


def test_h05_the_loss_of_one_connection_ends_every_transfer():
    ends = Ends()
    with strands(3) as (near, far, broken, pairs):
        near.send(1, memoryview(bytes(8 * CHUNK)), ends.of("sent"))
        far.expect(2, memoryview(bytearray(8)), ends.of("arrived"))
        pairs[2][0].fail(BrokenError("one cable was pulled"))
        for ((error,),) in zip(ends.wait("sent", "arrived"), strict=True):
            assert isinstance(error, BrokenError)
        for lane in (near, far):
            for thread in lane._threads:
                thread.join(10)
        assert broken


@pytest.mark.parametrize("granted", [0, 1, 2, 3])
def test_h27_threads_that_the_system_refuses_are_started_by_a_later_transfer(granted, monkeypatch):
    """Two connections need four threads: some are there, the rest come when the system gives them, and the end joins all."""
    ends, data, room, left = Ends(), bytes(range(256)) * (8 * CHUNK // 256), bytearray(8 * CHUNK), [granted]

    def start(run, name):
        if not left[0]:
            raise BusyError("no more threads")
        left[0] -= 1
        return start_thread(run, name)

    with connected() as first, connected() as second:
        lane = BulkLane([first[0], second[0]], lambda error: None, "near")
        with monkeypatch.context() as patch:
            patch.setattr("remora.link.bulk.start_thread", start)
            with pytest.raises(BusyError, match="no more threads"):
                lane.send(1, memoryview(data), ends.of("never"))
        assert len(lane._threads) == granted
        far = BulkLane([first[1], second[1]], lambda error: None, "far")
        lane.send(1, memoryview(data), ends.of("sent"))
        far.expect(1, memoryview(room), ends.of("arrived"))
        assert ends.wait("sent", "arrived") == [[None], [None]]
        assert room == data
        lane.expect(2, memoryview(bytearray(1)), ends.of("left"))
        over = BrokenError("the test is over")
        for carrier in (*first, *second):
            carrier.fail(over)
        for ended in (lane, far):
            ended.fail(over)
            ended.join()
        assert not any(thread.is_alive() for thread in (*lane._threads, *far._threads))
        assert len(ends.wait("left")[0]) == 1
    assert "never" not in ends.results


@settings(max_examples=40)
@given(
    transfers=st.lists(st.tuples(st.integers(0, 6 * CHUNK), st.booleans(), steps, steps, later), min_size=1, max_size=8),
    seed=st.integers(0, 1 << 30),
    cut=st.one_of(st.none(), st.integers(0, 20)),
    count=st.integers(2, 4),
)
def test_h27_every_transfer_ends_once_whatever_happens_on_several_connections(transfers, seed, cut, count):
    """As over one: who began hears exactly once, and a receiver that hears no error has all bytes."""
    every_transfer_ends_once(transfers, seed, cut, strands(count))


# -- sessions ----------------------------------------------------------------------------------------------------------------------


@contextmanager
def serving(carrier, folder):
    bind = {
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{folder}/bulk.sock",
        "shm": f"shm://{folder}/shm.sock",
        "loopback": "loopback://",
    }[carrier]
    with SharedServer(bind=bind) if carrier == "loopback" else ServerProcess(bind=bind) as server:
        yield server


@pytest.mark.parametrize("carrier", ["tcp", "unix", "shm", "loopback"])
@pytest.mark.parametrize("bulk", [1, 4])
def test_h02_transfers_of_a_session_use_the_connections_that_its_uri_asks_for(carrier, bulk, tmp_path):
    data = random.Random(3).randbytes(24 * MIB)
    with (
        serving(carrier, tmp_path) as server,
        remora.open(f"{server.uri}?bulk={bulk}&shared=0") as device,
    ):
        carriers = device.host.link.carriers
        assert len(carriers) == 2 + bulk
        buffer = device.upload(data)
        assert bytes(buffer.read(timeout=30)) == data
        lanes = [carriers[lane] for lane in carriers if lane >= Lane.BULK]
        wait_until(lambda: sum(lane.statistics().bytes_sent for lane in lanes) > len(data))
        counts = [lane.statistics() for lane in lanes]
        assert sum(count.bytes_received for count in counts) > len(data)


def test_h07_the_server_limits_the_connections_of_a_session():
    with ServerProcess(flags=("--session-bulk", "2")) as server, remora.open(f"{server.uri}?bulk=8") as device:
        assert len(device.host.link.carriers) == 2 + 2
        assert bytes(device.upload(b"x" * MIB).read(timeout=30)) == b"x" * MIB


def test_h05_the_loss_of_any_connection_ends_the_session():
    with ServerProcess() as server, remora.open(f"{server.uri}?bulk=3") as device:
        device.host.link.bulk.start()
        device.host.link.carriers[Lane.BULK_3].fail(BrokenError("one cable was pulled"))
        assert device.host.link.ended.wait(GRACE), "the server answers and says nothing: there is nothing to wait for"
        with pytest.raises(BrokenError, match="one cable was pulled"):
            device.queue.barrier().wait(10)


@pytest.mark.parametrize("query", ["bulk=0", "bulk=9", "bulk=-1", "bulk=two", "bulk=", "bulk=01"])
def test_a_number_of_connections_that_is_none_is_refused(query):
    with pytest.raises(UsageError, match=r"bulk=.*: give the number of connections for transfers, 1 to 8"):
        remora.open(f"remote-tcp://127.0.0.1:1?{query}")


def test_the_uri_of_a_device_passes_polling_on_to_the_lanes_of_small_commands():
    with ServerProcess() as server, remora.open(f"{server.uri}?spin_us=20") as device:
        spins = {lane: carrier.spin_us for lane, carrier in device.host.link.carriers.items()}
        assert spins == {Lane.CONTROL: 20, Lane.QUEUE: 20, Lane.BULK: None}
        device.queue.barrier().wait(10)
    with pytest.raises(UsageError, match="spin_us=<microseconds>"):
        remora.open("remote-tcp://127.0.0.1:1?spin_us=fast")
