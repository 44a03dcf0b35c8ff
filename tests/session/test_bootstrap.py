"""From HELLO to an operational session, and every way not to get there (H03, H04)."""

import dataclasses
import struct

import pytest
from tests.golden import frames
from tests.session.pair import AXIS, Pair, plain_failure

from remora.errors import BrokenError, BusyError, ClosedError, PeerError, UnsupportedError, UsageError
from remora.session.events import Accepted, Failed, Greeted, LanesUp
from remora.session.session import Session
from remora.session.state import Lane, Role, State, lanes_of
from remora.wire import commands
from remora.wire.bootstrap import (
    CAPABILITIES,
    CAPABILITY_BULK,
    CAPABILITY_RDMA,
    Hello,
    Join,
    Joined,
    Reject,
    decode_bootstrap,
    encode_bootstrap,
)


def send(session, lane, name, *places):
    """Feed a golden frame, changed at (offset, format, value)."""
    data = bytearray(frames.golden(lane, name))
    for offset, code, value in places:
        struct.pack_into("<" + code, data, offset, value)
    return session.receive(Lane.CONTROL, memoryview(data))


def greeted(hello=Hello()):  # noqa: B008
    pair = Pair()
    pair.client.greet(hello)
    assert pair.move(pair.client) == [Greeted(hello)]
    return pair


def test_h03_one_round_trip_brings_all_that_is_immutable():
    pair = greeted(Hello(client="remora 0.1"))
    pair.server.accept(pair.accept)
    assert pair.move(pair.server) == [Accepted(pair.accept)]
    assert pair.client.accepted == pair.server.accepted == pair.accept
    assert (pair.client.state, pair.server.state) == (State.JOINING, State.JOINING)


def test_h04_operational_only_with_both_other_lanes():
    pair = greeted()
    pair.server.accept(pair.accept)
    pair.move(pair.server)
    for session, lanes in ((pair.client, (Lane.BULK, Lane.QUEUE)), (pair.server, (Lane.QUEUE, Lane.BULK))):
        assert session.lane_joined(lanes[0]) == []
        with pytest.raises(UsageError, match="not operational yet"):
            session.check()
        assert session.lane_joined(lanes[1]) == [LanesUp()]
        session.check()


def test_h04_lanes_join_by_token_and_are_confirmed():
    pair = greeted()
    pair.server.accept(pair.accept)
    pair.move(pair.server)
    for lane in (Lane.QUEUE, Lane.BULK):
        assert decode_bootstrap(memoryview(pair.client.join_message(lane))) == Join(1, frames.TOKEN, lane)
        pair.client.check_joined(lane, memoryview(pair.server.joined_message(lane)))
    with pytest.raises(PeerError, match="expected JOINED for lane queue"):
        pair.client.check_joined(Lane.QUEUE, memoryview(pair.server.joined_message(Lane.BULK)))
    with pytest.raises(PeerError, match="expected JOINED"):
        pair.client.check_joined(Lane.QUEUE, memoryview(encode_bootstrap(Joined(2, 1))))
    with pytest.raises(UsageError, match="no such token"):
        pair.client.check_joined(Lane.QUEUE, memoryview(encode_bootstrap(Reject(UsageError("no such token")))))


def test_h04_no_lane_before_accept():
    pair = Pair()
    with pytest.raises(UsageError, match="not accepted yet"):
        pair.client.join_message(Lane.QUEUE)
    with pytest.raises(PeerError, match="lane while the session is idle"):
        pair.client.lane_joined(Lane.QUEUE)


def test_h04_a_lane_joins_once():
    pair = greeted()
    pair.server.accept(pair.accept)
    pair.server.lane_joined(Lane.QUEUE)
    with pytest.raises(PeerError, match="queue lane joined twice"):
        pair.server.lane_joined(Lane.QUEUE)
    with pytest.raises(PeerError, match="control lane joined twice"):
        pair.server.lane_joined(Lane.CONTROL)


@pytest.mark.parametrize("bulk", [1, 3, 8])
def test_h04_every_connection_of_the_bulk_lane_joins(bulk):
    pair = greeted(Hello(bulk=8))
    pair.server.accept(dataclasses.replace(pair.accept, bulk=bulk))
    pair.move(pair.server)
    lanes = lanes_of(bulk)[1:]
    assert len(lanes) == 1 + bulk
    for session in (pair.client, pair.server):
        for lane in lanes[:-1]:
            assert session.lane_joined(lane) == []
        assert session.lane_joined(lanes[-1]) == [LanesUp()]
    for lane in lanes:
        assert decode_bootstrap(memoryview(pair.client.join_message(lane))) == Join(1, frames.TOKEN, lane)
        pair.client.check_joined(lane, memoryview(pair.server.joined_message(lane)))


def test_h25_no_more_connections_than_were_asked_for():
    pair = greeted(Hello(bulk=2))
    with pytest.raises(UsageError, match="asked for 2 connections"):
        pair.server.accept(dataclasses.replace(pair.accept, bulk=3))
    pair.server.accept(dataclasses.replace(pair.accept, bulk=2))
    with pytest.raises(PeerError, match="bulk_3 lane was not agreed upon"):
        pair.server.lane_joined(Lane.BULK_3)
    pair = greeted(Hello(bulk=2))
    (failed,) = pair.client.receive(Lane.CONTROL, memoryview(encode_bootstrap(dataclasses.replace(pair.accept, bulk=3))))
    assert "accepted with 3 connections of the bulk lane; asked for 2" in failed.error.message


def test_h06_reject_brings_its_reason_and_class():
    pair = greeted()
    pair.server.reject(BusyError("all 16 sessions are in use"))
    assert plain_failure(pair.move(pair.server)) == (BusyError, "all 16 sessions are in use")
    assert (pair.client.state, pair.server.state) == (State.FAILED, State.FAILED)
    for session in (pair.client, pair.server):
        with pytest.raises(BusyError, match="all 16 sessions"):
            session.check()
        with pytest.raises(BusyError, match="all 16 sessions"):
            session.lane_joined(Lane.QUEUE)
        assert session.fail(BrokenError("later")) == []
        assert session.pending(Lane.CONTROL) == 0


def test_h03_another_version_is_rejected_with_both_versions_named():
    server = Session(Role.SERVER, "the client", 0.0)
    error = plain_failure(send(server, "bootstrap", "hello", (6, "H", 2)))
    assert error[0] is PeerError
    assert "version 2, this side version 1" in error[1]
    client = Session(Role.CLIENT, "tcp://server", 0.0)
    client.greet(Hello())
    assert plain_failure(client.receive(Lane.CONTROL, memoryview(server.take(Lane.CONTROL)))) == error


def test_h03_an_answer_in_another_version_is_told_to_that_server():
    pair = greeted()
    pair.client.take(Lane.CONTROL)
    assert plain_failure(send(pair.client, "bootstrap", "accept", (6, "H", 7)))[0] is PeerError
    pair.server.accept(pair.accept)
    assert "version 7, this side version 1" in plain_failure(pair.move(pair.client))[1]


def test_h03_a_missing_required_capability_is_refused_with_a_reason():
    pair = greeted(Hello(CAPABILITIES, CAPABILITIES))
    with pytest.raises(UnsupportedError, match="requires the capabilities 0x6") as caught:
        pair.server.accept(pair.accept)
    assert pair.server.state is State.GREETING
    pair.server.reject(caught.value)
    assert plain_failure(pair.move(pair.server)) == (UnsupportedError, caught.value.message)


@pytest.mark.parametrize("capabilities", [0, CAPABILITY_RDMA, CAPABILITIES])
def test_h03_an_accept_with_other_capabilities_than_agreed_is_refused(capabilities):
    pair = greeted(Hello(CAPABILITY_BULK, CAPABILITY_BULK))
    error = plain_failure(send(pair.client, "bootstrap", "accept", (40, "I", capabilities)))
    assert error == (PeerError, f"accepted with the capabilities {capabilities:#x}; asked for 0x1 of 0x1")


def test_h03_a_server_does_not_accept_more_than_was_offered():
    pair = greeted()
    with pytest.raises(UsageError, match="accept no others"):
        pair.server.accept(dataclasses.replace(pair.accept, capabilities=CAPABILITIES))


def test_steps_out_of_order_are_the_callers_fault():
    pair = Pair()
    for step in (lambda: pair.server.accept(pair.accept), lambda: pair.server.reject(BusyError("full"))):
        with pytest.raises(UsageError, match="while the session is idle"):
            step()
    pair.client.greet(Hello())
    with pytest.raises(UsageError, match="nothing to hello while the session is greeting"):
        pair.client.greet(Hello())


def test_h05_steps_after_the_end_raise_its_cause():
    pair = Pair()
    pair.client.fail(BrokenError("connection refused"))
    pair.server.fail(BrokenError("connection reset"))
    with pytest.raises(BrokenError, match="connection refused"):
        pair.client.greet(Hello())
    for step in (lambda: pair.server.accept(pair.accept), lambda: pair.server.reject(BusyError("full"))):
        with pytest.raises(BrokenError, match="connection reset"):
            step()


def test_steps_of_the_other_role_are_the_callers_fault():
    pair = Pair()
    for step in (
        lambda: pair.server.greet(Hello()),
        lambda: pair.client.accept(pair.accept),
        lambda: pair.client.reject(BusyError("full")),
    ):
        with pytest.raises(UsageError, match="only the"):
            step()


def test_a_stranger_gets_a_reject_and_the_session_its_first_bytes():
    server = Session(Role.SERVER, "the client", 0.0)
    error = plain_failure(server.receive(Lane.CONTROL, memoryview(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")))
    assert error[0] is PeerError
    assert "GET / HTTP" in error[1]
    assert decode_bootstrap(memoryview(server.take(Lane.CONTROL))).error.message == error[1]


def test_a_client_that_gives_up_in_silence_says_nothing():
    pair = Pair()
    pair.client.greet(Hello())
    pair.client.take(Lane.CONTROL)
    assert pair.client.fail(UsageError("the deadline passed")) == [Failed(pair.client.failure)]
    assert pair.client.pending(Lane.CONTROL) == 0


def test_close_while_greeting_says_nothing_on_either_side():
    pair = greeted()
    for session in (pair.client, pair.server):
        session.take(Lane.CONTROL)
        assert isinstance(session.close("enough")[0].error, ClosedError)
        assert session.state is State.CLOSED
        assert session.pending(Lane.CONTROL) == 0


def test_nothing_is_submitted_before_the_lanes_are_up():
    pair = greeted()
    pair.server.accept(pair.accept)
    pair.move(pair.server)
    calls = [
        lambda: pair.client.command(AXIS, commands.BARRIER, (), b""),
        lambda: pair.client.allocate(0, 8),
        lambda: pair.client.release([1]),
        lambda: pair.server.advance(AXIS),
        lambda: pair.server.result(AXIS, 1, bytearray(8)),
        lambda: pair.server.unname(frames.NEW_BUFFER, UsageError("no")),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="joining, not operational yet"):
            call()


def test_a_queue_frame_before_the_lanes_are_up_fails_the_session():
    pair = greeted()
    error = plain_failure(pair.server.receive(Lane.QUEUE, memoryview(frames.golden("queue", "command_barrier"))))
    assert error == (PeerError, "a queue frame while the session is greeting")
