"""Requests and responses on the control lane (H02), and what a peer cannot do with them (H25)."""

import pytest
from tests.golden import frames
from tests.session.pair import Pair, load, plain_failure

from remora.errors import BusyError, ClosedError, NotFoundError, PeerError, UsageError
from remora.session.events import Profiled, RequestReceived, Responded
from remora.session.session import MAX_UNREAD
from remora.session.state import Lane
from remora.wire.command_buffer_calls import COMMAND_BUFFER_UPLOAD, CommandBufferUpload
from remora.wire.control import MAX_REQUESTS, Ping, Request, Response, encode_control
from remora.wire.executable_calls import EXECUTABLE_LOAD, MAX_MANIFEST
from remora.wire.method import Loaded
from remora.wire.profile import Records, Taken


def feed(session, *messages):
    return session.receive(Lane.CONTROL, memoryview(b"".join(encode_control(message) for message in messages)))


def test_h02_responses_find_their_requests_in_any_order():
    pair = Pair.up()
    bodies = [load(pair.client) for _ in range(3)]
    ids = [pair.client.request(body) for body in bodies]
    assert pair.move(pair.client) == [RequestReceived(number, body) for number, body in zip(ids, bodies, strict=True)]
    pair.server.respond(ids[2], Loaded(frames.KERNELS))
    assert pair.server.open_requests == 2
    pair.server.respond(ids[0], NotFoundError("no such target", origin="cpu"))
    loaded, failed = pair.move(pair.server)
    assert loaded == Responded(ids[2], Loaded(frames.KERNELS))
    assert (failed.id, type(failed.body), str(failed.body)) == (ids[0], NotFoundError, "no such target [cpu]")


def test_h24_records_and_what_was_taken_pass_both_ways():
    pair, record = Pair.up(), Records(1, 1, 3, frames.RAN)
    pair.server.profile(encode_control(record))
    assert pair.move(pair.server) == [Profiled(record)]
    pair.client.profile(encode_control(Taken(1, 1)))
    assert pair.move(pair.client) == [Profiled(Taken(1, 1))]
    pair.client.close("over")
    with pytest.raises(ClosedError, match="over"):
        pair.client.profile(encode_control(Taken(1, 2)))


def test_a_request_is_answered_once():
    pair = Pair.up()
    number = pair.client.request(load(pair.client))
    pair.move(pair.client)
    pair.server.respond(number, Loaded(frames.KERNELS))
    for wrong in (number, number + 1):
        with pytest.raises(UsageError, match=f"the request {wrong} is not open"):
            pair.server.respond(wrong, Loaded(frames.KERNELS))


def test_h25_a_response_without_a_request_fails_the_session():
    pair = Pair.up()
    assert plain_failure(feed(pair.client, Response(7, EXECUTABLE_LOAD, Loaded(frames.KERNELS)))) == (
        PeerError,
        "a response 0x20 to the request 7, which is not open",
    )


def test_h25_a_response_to_another_method_fails_the_session():
    pair = Pair.up()
    number = pair.client.request(load(pair.client))
    answer = Response(number, COMMAND_BUFFER_UPLOAD, Loaded(frames.RECORDING))
    assert plain_failure(feed(pair.client, answer)) == (
        PeerError,
        f"a response 0x30 to the request {number}, which is not open",
    )


def test_h18_a_recording_and_its_answer():
    pair = Pair.up()
    body = CommandBufferUpload(frames.NEW_RECORDING, 0, 6, len(frames.STREAM), frames.STREAM)
    number = pair.client.request(body)
    assert pair.move(pair.client) == [RequestReceived(number, body)]
    pair.server.respond(number, Loaded(frames.RECORDING))
    assert pair.move(pair.server) == [Responded(number, Loaded(frames.RECORDING))]


def test_h25_a_request_id_is_used_once_at_a_time():
    pair = Pair.up()
    events = feed(pair.server, Request(7, load(pair.client)), Request(7, load(pair.client)))
    assert len(events) == 2
    assert plain_failure(events)[0] is PeerError


def test_h07_open_requests_are_bounded_on_both_sides():
    pair = Pair.up()
    body = load(pair.client)
    for _ in range(MAX_REQUESTS):
        pair.client.request(body)
    with pytest.raises(BusyError, match="256 requests are open"):
        pair.client.request(body)
    assert len(pair.move(pair.client)) == MAX_REQUESTS
    error = plain_failure(feed(pair.server, Request(9999, body)))
    assert "256 others are" in error[1]


def test_a_request_that_cannot_be_sent_leaves_nothing_behind():
    pair = Pair.up()
    with pytest.raises(UsageError, match="describe fewer kernels"):
        pair.client.request(load(pair.client, manifest=bytes(MAX_MANIFEST + 1)))
    assert pair.client.pending(Lane.CONTROL) == 0
    first = pair.client.request(load(pair.client))
    pair.move(pair.client)
    pair.server.respond(first, Loaded(frames.KERNELS))
    assert len(pair.move(pair.server)) == 1


def test_the_other_roles_calls_are_the_callers_fault():
    pair = Pair.up()
    calls = [
        lambda: pair.server.request(load(pair.client)),
        lambda: pair.server.allocate(0, 8),
        lambda: pair.server.release([1]),
        lambda: pair.client.respond(1, Loaded(frames.KERNELS)),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"only the (client|server) may do this"):
            call()


def test_h25_a_peer_that_asks_and_does_not_read_the_answers_is_given_up():
    pair = Pair.up()
    pings = memoryview(encode_control(Ping(1)) * 4096)
    events = []
    for _ in range(2 + MAX_UNREAD // len(pings)):
        events += pair.server.receive(Lane.CONTROL, pings)
    assert plain_failure(events) == (PeerError, "the peer goes on asking and does not read the answers")
    assert pair.server.pending(Lane.CONTROL) < MAX_UNREAD + 1024


def test_h24_records_and_how_far_they_are_taken_cross_the_control_lane():
    pair = Pair.up()
    records, taken = Records(1, 1, 0, frames.RAN), Taken(1, 1)
    pair.server.profile(encode_control(records))
    assert pair.move(pair.server) == [Profiled(records)]
    pair.client.profile(encode_control(taken))
    assert pair.move(pair.client) == [Profiled(taken)]
    pair.server.close("enough")
    with pytest.raises(ClosedError):
        pair.server.profile(encode_control(records))
