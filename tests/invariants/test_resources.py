"""Invariants 8, 12 and 17 of a remote HAL: ids, slots of sessions, and streams that are checked before they run."""

import os
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.invariants.steps import contents, fill
from tests.remote.raw import raw_client

import remora
from remora import samples
from remora.base.ids import MAX_GENERATION, ResourceType, make_id, make_provisional, split_id
from remora.base.uri import parse_uri
from remora.carriers import connect
from remora.errors import BusyError, NotFoundError, UsageError
from remora.server.resources import ResourceTable
from remora.session.events import Named
from remora.session.state import Lane
from remora.testing.cts.hal_factory import LONG
from remora.wire import commands
from remora.wire.bootstrap import Join, Reject, decode_bootstrap, encode_bootstrap
from remora.wire.bulk import BULK_HEADER, START, decode_bulk
from remora.wire.command_buffer import RecordedEvent, RecordedFill, RecordedLabel, Ref, encode_stream
from remora.wire.execute import encode_execute

# -- 8 ------------------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(steps=st.lists(st.tuples(st.booleans(), st.sampled_from(ResourceType), st.integers(0, 40)), max_size=60))
def test_invariant_08_an_id_names_one_thing_ever(steps):
    """Type, generation and slot are all compared: an id that was given back names nothing, whatever has its slot now."""
    table, live, dead, given_back = ResourceTable(capacity=4), {}, [], []
    for number, (add, kind, which) in enumerate(steps, 1):
        if add and len(live) < 4:
            canonical = table.add(make_provisional(kind, number), kind, number)
            assert canonical not in live
            assert canonical not in dead
            live[canonical] = number
        elif live and not add:
            canonical = sorted(live)[which % len(live)]
            table.release(canonical, given_back.append)
            assert given_back.pop() == live.pop(canonical)
            dead.append(canonical)
        for old in dead:
            table.release(old, given_back.append)  # stale: no error, nothing happens
            with pytest.raises(NotFoundError):
                table.get(old)
        assert given_back == []
        for canonical, thing in live.items():
            own, generation, placement, slot = split_id(canonical)
            assert table.get(canonical) == thing
            assert table.of(own)[canonical] == thing
            other = next(each for each in ResourceType if each is not own)
            for wrong in (make_id(other, generation, slot, placement), make_id(own, generation + 1, slot, placement)):
                with pytest.raises(NotFoundError):
                    table.get(wrong)


def test_invariant_08_a_slot_is_retired_when_its_generations_are_used_up():
    """The next resource gets another slot, or is refused; an id of the old one never comes again."""
    table = ResourceTable(capacity=1)
    for number in range(1, MAX_GENERATION + 1):
        canonical = table.add(make_provisional(ResourceType.BUFFER, number), ResourceType.BUFFER, number)
        assert split_id(canonical)[1] == number
        table.release(canonical, lambda _: None)
    with pytest.raises(BusyError, match="1 of 1 are in use"):
        table.add(make_provisional(ResourceType.BUFFER, number + 1), ResourceType.BUFFER, None)
    with pytest.raises(NotFoundError):
        table.get(canonical)


def test_invariant_08_a_stale_id_over_the_wire(raw):
    """To release it is no error and takes nothing from its slot's new owner; to use it fails the command, and its queue only."""
    old = raw.session.allocate(0, 8)
    raw.send()
    stale = raw.until(Lane.QUEUE, lambda event: isinstance(event, Named) and event.provisional == old).canonical
    raw.session.release([old])
    new = raw.session.allocate(0, 8)
    raw.session.release([old, stale, make_id(ResourceType.EXECUTABLE, *split_id(stale)[1::2])])
    epoch = fill(raw, 0, new, 8, b"n")
    wrong = fill(raw, 1, stale, 8, b"s")
    raw.send()
    assert raw.advanced(0, epoch).failure is None
    assert isinstance(raw.advanced(1, wrong).failure, NotFoundError)
    owner = raw.until(Lane.QUEUE, lambda event: isinstance(event, Named) and event.provisional == new).canonical
    assert split_id(owner)[3] == split_id(stale)[3]  # it is the same slot
    assert contents(raw, 0, new, 8) == b"n" * 8
    as_code = raw.command(2, commands.DISPATCH, commands.encode_dispatch(owner, 0, (1, 1, 1), [], b""))
    raw.send()
    failure = raw.advanced(2, as_code).failure
    assert isinstance(failure, UsageError)
    assert "does not name an executable" in str(failure)


# -- 12 -----------------------------------------------------------------------------------------------------------------------


def begin_download(raw, size, transfer_id):
    """Have the server send more than its carrier takes; returns once it is in the middle of it."""
    buffer = raw.session.allocate(0, size)
    raw.command(0, commands.DOWNLOAD, commands.encode_transfer(buffer, 0, size, transfer_id))
    raw.send()
    header = bytearray(BULK_HEADER.size)
    raw.read_bulk(header)
    assert decode_bulk(header)[:2] == (START, transfer_id)


@pytest.mark.parametrize("shared", [False, True], ids=["process", "thread"])
def test_invariant_12_a_slot_is_free_only_when_its_transfers_are_over(serve, shared):
    """The client vanishes while the server sends from a buffer's memory: that ends before the next session gets the place."""
    server = serve(max_sessions=1, shared=shared)
    with raw_client(server.uri) as raw:
        begin_download(raw, 64 << 20, 2 if shared else 3)
        with pytest.raises(BusyError, match="in use"):
            remora.open(server.uri)
        pids = server.session_pids()
    with remora.open(server.uri, retry=LONG) as device, device.upload(bytes(range(256)) * 4096) as buffer:
        log = server.log
        assert log.index("session 1 ended") < log.index("session 2 began")
        assert not set(pids) & set(server.session_pids())
        assert bytes(buffer.read(timeout=LONG)) == bytes(range(256)) * 4096


def test_invariant_12_what_comes_late_for_a_session_that_has_ended_reaches_no_other(serve):
    """A JOIN with the old session's id and token is refused, though another session has its place."""
    server = serve(max_sessions=1)
    with raw_client(server.uri) as raw:
        accept = raw.session.accepted
    with remora.open(server.uri, retry=LONG) as device:
        for lane in (Lane.QUEUE, Lane.BULK):
            with connect(parse_uri(server.uri).carrier, timeout=LONG) as late:
                late.activate()
                late.send_all(encode_bootstrap(Join(accept.session_id, accept.token, lane)), timeout=LONG)
                with late.receive(LONG) as lease:
                    answer = decode_bootstrap(lease.view)
            assert isinstance(answer, Reject)
            assert f"no session {accept.session_id}" in str(answer.error)
        with device.upload(b"mine") as buffer:
            assert bytes(buffer.read(timeout=LONG)) == b"mine"


def test_invariant_12_memory_under_a_transfer_is_left_alone_when_the_session_dies(serve):
    """Client side: when the waits of a lost download end, nothing writes into the caller's memory any more."""
    server = serve()
    into = bytearray(128 << 20)
    with remora.open(server.uri) as device:
        buffer = device.allocate(len(into))
        device.queue.fill(buffer, b"\xff").wait(LONG)
        arrived = device.link_statistics().bytes_received
        reading = device.queue.read(buffer, into)
        while device.link_statistics().bytes_received < arrived + (1 << 20):
            threading.Event().wait(0.001)
        os.kill(server.session_pids()[0], signal.SIGKILL)
        with pytest.raises(remora.DeviceLostError, match="SIGKILL"):
            reading.wait(LONG)
        device.close()
        assert into.startswith(b"\xff" * (1 << 20))
        into[:] = bytes(len(into))
        assert into.count(0) == len(into)


# -- 17 -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        lambda buffer: encode_stream([RecordedFill(Ref(buffer, 8, 16), b"x")]),
        lambda buffer: encode_stream([RecordedFill(Ref(make_id(ResourceType.BUFFER, 9, 77), 0, 4), b"x")]),
        lambda buffer: encode_stream([RecordedEvent(2, make_id(ResourceType.EVENT, 1, 1))]),
        lambda buffer: encode_stream([RecordedLabel("")]),
        lambda buffer: encode_stream([RecordedFill(Ref(buffer, 0, 4), b"x")])[:-8] + b"\xff" * 8,
    ],
    ids=["out of range", "unknown buffer", "unknown event", "label not begun", "garbage"],
)
def test_invariant_17_nothing_of_a_stream_runs_before_all_of_it_is_checked(raw, bad):
    """H18, H25: two hundred good records before the bad one leave no trace, and the session goes on."""
    buffer = raw.session.allocate(0, 16)
    cleared = fill(raw, 0, buffer, 16, b"c")
    stream = encode_stream([RecordedFill(Ref(buffer, 0, 16), b"g")] * 200) + bad(buffer)
    failed = raw.command(0, commands.EXECUTE, encode_execute(0, (), (), stream))
    raw.send()
    failure = raw.advanced(0, failed).failure
    assert isinstance(failure, UsageError)
    assert "record 200" in str(failure)
    assert [epoch for epoch, cause in raw.progress(0) if cause is None][-1] == cleared
    assert contents(raw, 1, buffer, 16) == b"c" * 16


def test_invariant_17_a_good_stream_of_the_same_kind_runs(raw):
    buffer = raw.session.allocate(0, 16)
    stream = encode_stream([RecordedFill(Ref(buffer, 0, 16), b"g")] * 200 + [RecordedFill(Ref(buffer, 8, 8), b"x")])
    epoch = raw.command(0, commands.EXECUTE, encode_execute(0, (), (), stream))
    raw.send()
    assert raw.advanced(0, epoch).failure is None
    assert contents(raw, 1, buffer, 16) == b"g" * 8 + b"x" * 8


def test_invariant_17_on_a_local_device_too():
    """The same promise without a wire: recording refuses the record, and the recording cannot be executed."""
    with remora.open("cpu") as device, device.upload(b"c" * 16) as buffer:
        recording = device.command_buffer()
        recording.fill(buffer, b"g")
        fill_index = device.load(samples.load("vector"))["fill_index"]
        with pytest.raises(UsageError):
            recording.dispatch(fill_index, (1, 1, 1), [buffer], (1000, 0))
        with pytest.raises(UsageError):
            device.queue.execute(recording)
        assert bytes(buffer.read(timeout=LONG)) == b"c" * 16
