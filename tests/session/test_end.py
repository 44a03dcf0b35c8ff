"""Every way to end goes down one road: the first cause wins, Failed comes once, every later call raises it (H05)."""

import pytest
from tests.golden import frames
from tests.session.pair import AXIS, Pair, load, plain_failure

from remora.errors import (
    BrokenError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    Error,
    NotFoundError,
    PeerError,
    Status,
    UsageError,
)
from remora.session.events import Advanced, Failed
from remora.session.state import Lane, State
from remora.wire import commands, queue
from remora.wire.control import Failure, Goaway, Ping, Pong, Response, encode_control
from remora.wire.executable_calls import EXECUTABLE_LOAD
from remora.wire.layout import HEADER
from remora.wire.method import Loaded


def feed(session, *messages, lane=Lane.CONTROL):
    return session.receive(lane, memoryview(b"".join(messages)))


def lost(session):
    return session.fail(BrokenError("connection reset", origin="tcp://server"))


def goaway(session):
    return feed(session, encode_control(Goaway(ClosedError("the server stops"))))


def failure(session):
    return feed(session, encode_control(Failure(DeviceLostError("the process died of SIGSEGV"))))


def malformed(session):
    return feed(session, b"\xff" * 16)


def malformed_queue(session):
    return feed(session, HEADER.pack(8, 0x3F, 0, 0), lane=Lane.QUEUE)


def closed(session):
    return session.close("enough")


ENDS = {
    lost: (BrokenError, "connection reset"),
    goaway: (BrokenError, "ended the session: the server stops"),
    failure: (DeviceLostError, "the process died of SIGSEGV"),
    malformed: (PeerError, "a frame size of 4294967295"),
    malformed_queue: (PeerError, "a queue frame 0x3f"),
    closed: (ClosedError, "was closed: enough"),
}


def later_calls(session):
    """Every call that may be made on an operational session, by its name."""
    return {
        "check": session.check,
        "command": lambda: session.command(AXIS, commands.BARRIER, (), b""),
        "lane_joined": lambda: session.lane_joined(Lane.QUEUE),
        "advance": lambda: session.advance(AXIS),
        "result": lambda: session.result(AXIS, 1, bytearray(8)),
        "unname": lambda: session.unname(frames.NEW_BUFFER, UsageError("no")),
    }


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("first", ENDS)
def test_h05_first_cause_wins(first, side):
    pair = Pair.up()
    session = getattr(pair, side)
    kind, message = ENDS[first]
    error = plain_failure(first(session))
    assert error[0] is kind
    assert message in error[1]
    written = session.pending(Lane.CONTROL)
    for later in ENDS:
        assert later(session) == []
    assert session.tick(1e6) == []
    assert session.pending(Lane.CONTROL) == written
    for call in later_calls(session).values():
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.message == error[1]
        assert caught.value is not session.failure
    assert session.pending(Lane.QUEUE) == 0


def test_h05_later_calls_of_the_client_raise_the_cause():
    pair = Pair.up()
    body = load(pair.client)
    lost(pair.client)
    for call in (lambda: pair.client.request(body), lambda: pair.client.allocate(0, 8), lambda: pair.client.release([1])):
        with pytest.raises(BrokenError, match="connection reset"):
            call()
    lost(pair.server)
    with pytest.raises(BrokenError, match="connection reset"):
        pair.server.respond(1, Loaded(frames.KERNELS))


@pytest.mark.parametrize("first", [goaway, failure])
def test_h05_no_event_after_failed_though_more_frames_came(first):
    pair = Pair.up()
    number = pair.client.request(load(pair.client))
    last = encode_control(Goaway(ClosedError("x")) if first is goaway else Failure(DeviceError("x")))
    rest = encode_control(Ping(1)) + encode_control(Response(number, EXECUTABLE_LOAD, Loaded(frames.KERNELS))) + b"\xff" * 8
    pair.client.take(Lane.CONTROL)
    events = feed(pair.client, last, rest)
    assert [type(event) for event in events] == [Failed]
    assert pair.client.pending(Lane.CONTROL) == 0


def test_h05_events_before_the_malformed_frame_count():
    pair = Pair.up()
    pair.submit(2)
    events = feed(pair.client, queue.encode_advance(AXIS, 1), queue.encode_advance(AXIS, 9), lane=Lane.QUEUE)
    assert events[0].epoch == 1
    assert "never submitted" in plain_failure(events)[1]
    pair = Pair.up()
    pair.submit(2)
    events = feed(pair.client, queue.encode_advance(AXIS, 1), b"garbage!", lane=Lane.QUEUE)
    assert events[0].epoch == 1
    assert "a frame size of" in plain_failure(events)[1]


@pytest.mark.parametrize(
    "error",
    [
        DeviceLostError("the process died of SIGSEGV"),
        NotFoundError("no such thing"),
        PeerError("epochs are consecutive"),
        Error("odd", code=Status.ABORTED),
    ],
)
def test_h05_the_peer_learns_the_cause(error):
    pair = Pair.up()
    pair.server.fail(error)
    (event,) = pair.move(pair.server)
    assert (type(event.error), event.error.message, event.error.code) == (type(error), error.message, error.code)
    assert event.error.origin == "tcp://server:5000"
    assert pair.client.pending(Lane.CONTROL) == 0


def test_h05_the_peers_own_origin_stands_behind_its_name():
    pair = Pair.up()
    pair.server.fail(DeviceLostError("the process died of SIGSEGV", origin="kernel crash"))
    assert pair.move(pair.server)[0].error.origin == "tcp://server:5000, kernel crash"


def test_h05_nothing_is_told_over_a_connection_that_is_gone():
    pair = Pair.up()
    lost(pair.client)
    assert pair.client.pending(Lane.CONTROL) == 0


def test_h05_closing_says_goaway_with_the_reason():
    pair = Pair.up()
    assert pair.client.close("done for today")[0].error.message == "the connection to tcp://server:5000 was closed: done for today"
    assert pair.client.state is State.CLOSED
    assert plain_failure(pair.move(pair.client)) == (BrokenError, "the client ended the session: done for today")
    assert pair.server.state is State.FAILED


def test_h05_local_end_before_anything():
    for end in (lost, closed):
        pair = Pair()
        assert len(end(pair.client)) == 1
        with pytest.raises(Error):
            pair.client.check()
        assert pair.client.pending(Lane.CONTROL) == 0


def test_h25_a_pong_is_answered_once_and_only_when_asked():
    pair = Pair.up()
    assert "PONG 1 was not asked for" in plain_failure(feed(pair.client, encode_control(Pong(1))))[1]
    pair = Pair.up()
    pair.client.tick(1.0)
    assert feed(pair.client, encode_control(Pong(1))) == []
    assert "PONG 1 was not asked for" in plain_failure(feed(pair.client, encode_control(Pong(1))))[1]


def test_taking_the_queue_lane_leaves_it_empty_and_usable():
    pair = Pair.up()
    pair.client.command(AXIS, commands.BARRIER, (), b"")
    first = pair.client.take(Lane.QUEUE)
    pair.client.command(AXIS, commands.BARRIER, (), b"")
    assert len(first) == len(pair.client.take(Lane.QUEUE)) == 24
    assert pair.client.take(Lane.QUEUE) == b""


def test_h05_a_client_that_was_dismissed_hears_the_answers_that_the_goaway_overtook():
    """On the queue lane, while any are owed; nothing else, and no second end."""
    pair = Pair.up()
    first, second = pair.submit(2)
    for epoch in (first, second):
        pair.server.completion[AXIS].complete(epoch)
        pair.server.advance(AXIS)
    late = memoryview(pair.server.take(Lane.QUEUE))
    goaway(pair.client)
    assert pair.client.owed_answers == 2
    half = len(late) // 2
    assert pair.client.receive(Lane.QUEUE, late[:half]) == [Advanced(AXIS, first, None)]
    assert feed(pair.client, encode_control(Ping(1))) == []
    assert pair.client.receive(Lane.QUEUE, late[half:]) == [Advanced(AXIS, second, None)]
    assert pair.client.owed_answers == 0
    assert malformed_queue(pair.client) == []
    with pytest.raises(BrokenError, match="the server stops"):
        pair.client.check()


@pytest.mark.parametrize("end", [goaway, failure])
def test_h05_what_comes_wrong_after_the_end_changes_nothing(end):
    pair = Pair.up()
    pair.submit(1)
    end(pair.client)
    cause = pair.client.failure
    assert malformed_queue(pair.client) == []
    assert pair.client.failure is cause


def test_h05_a_server_that_was_dismissed_takes_no_commands():
    pair = Pair.up()
    pair.client.command(AXIS, commands.BARRIER, (), b"")
    goaway(pair.server)
    assert pair.server.owed_answers == 0
    assert pair.move_queue(pair.client) == []
