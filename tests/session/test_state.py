"""The tables decide: every state, frame kind and role is either allowed or a PeerError."""

import pytest
from tests.golden import frames
from tests.session.pair import Pair

from remora.errors import PeerError
from remora.session.events import Failed
from remora.session.state import FRAMES, SENDER, TRANSITIONS, Lane, Role, State, Stimulus, check_frame, next_state
from remora.wire import bootstrap, control, profile, queue
from remora.wire.bootstrap import Hello

#: kind -> (lane, a golden frame that is good in itself)
EXAMPLES = {
    bootstrap.HELLO: (Lane.CONTROL, "bootstrap", "hello"),
    bootstrap.ACCEPT: (Lane.CONTROL, "bootstrap", "accept"),
    bootstrap.REJECT: (Lane.CONTROL, "bootstrap", "reject"),
    bootstrap.JOIN: (Lane.CONTROL, "bootstrap", "join_queue"),
    bootstrap.JOINED: (Lane.CONTROL, "bootstrap", "joined"),
    control.PING: (Lane.CONTROL, "control", "ping"),
    control.PONG: (Lane.CONTROL, "control", "pong"),
    control.GOAWAY: (Lane.CONTROL, "control", "goaway"),
    control.FAILURE: (Lane.CONTROL, "control", "failure"),
    control.REQUEST: (Lane.CONTROL, "control", "request_inline"),
    control.RESPONSE: (Lane.CONTROL, "control", "response_loaded"),
    profile.RECORDS: (Lane.CONTROL, "control", "records"),
    profile.TAKEN: (Lane.CONTROL, "control", "taken"),
    queue.COMMAND: (Lane.QUEUE, "queue", "command_barrier"),
    queue.ALLOCATE: (Lane.QUEUE, "queue", "allocate"),
    queue.RELEASE: (Lane.QUEUE, "queue", "release"),
    queue.ADVANCE: (Lane.QUEUE, "queue", "advance"),
    queue.RESULT: (Lane.QUEUE, "queue", "result"),
    queue.EVENT: (Lane.QUEUE, "queue", "event_signal"),
    queue.STATE: (Lane.QUEUE, "queue", "state_set"),
    queue.UNNAMED: (Lane.QUEUE, "queue", "unnamed"),
}
ENDING = {bootstrap.REJECT, control.GOAWAY, control.FAILURE}


def reach(role, state):
    """A session of this role in this state."""
    if state is State.OPERATIONAL:
        pair = Pair.up()
    else:
        pair = Pair()
        if state in (State.GREETING, State.JOINING):
            pair.client.greet(Hello())
            pair.move(pair.client)
        if state is State.JOINING:
            pair.server.accept(pair.accept)
            pair.move(pair.server)
    session = pair.client if role is Role.CLIENT else pair.server
    if state is State.CLOSED:
        session.close("enough")
    if state is State.FAILED:
        session.fail(PeerError("before"))
    assert session.state is state
    return session


def answered(session, kind):
    """Let the session expect the answers that the golden frames give."""
    if session.role is Role.CLIENT and session.state is State.OPERATIONAL:
        for axis in session.submission.tracker.axes:
            for _ in range(9):
                session.command(axis, 1, (), b"")
        session._requests[1] = 0x20
        session._unnamed.add(frames.NEW_BUFFER)
    if kind == queue.RELEASE and session.role is Role.SERVER:
        session.received = 8
        session._reported = 8
    session.heartbeat.nonce = 0xFFFF_FFFF_FFFF_FFFF
    for lane in (Lane.CONTROL, Lane.QUEUE):
        session.take(lane)


@pytest.mark.parametrize("kind", EXAMPLES, ids=hex)
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", State)
def test_h25_every_frame_in_every_state_at_either_role(state, role, kind):
    session = reach(role, state)
    answered(session, kind)
    lane, room, name = EXAMPLES[kind]
    allowed = kind in FRAMES[state] and SENDER[kind] != {role}
    events = session.receive(lane, memoryview(frames.golden(room, name)))
    if not FRAMES[state]:
        assert events == []
        assert session.state is state
    elif not allowed:
        assert isinstance(events[-1], Failed)
        assert isinstance(session.failure, PeerError)
    elif kind in ENDING:
        assert session.state is State.FAILED
        assert not isinstance(session.failure, PeerError)
    else:
        assert session.failure is None


def test_the_tables_name_every_frame_and_state():
    assert set(SENDER) == set(EXAMPLES) - {bootstrap.JOIN, bootstrap.JOINED}
    assert set(FRAMES) == set(TRANSITIONS) == set(State)
    assert set().union(*FRAMES.values()) == set(SENDER)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("stimulus", Stimulus)
def test_transitions_are_the_tables(state, stimulus):
    if stimulus in TRANSITIONS[state]:
        assert next_state(state, stimulus) is TRANSITIONS[state][stimulus]
    else:
        with pytest.raises(PeerError, match=f"{stimulus.value} while the session is {state.value}"):
            next_state(state, stimulus)


def test_h05_every_living_state_can_end_and_ended_ones_stay():
    for state, row in TRANSITIONS.items():
        ended = state in (State.CLOSED, State.FAILED)
        assert ({Stimulus.CLOSE, Stimulus.FAIL} <= set(row)) is not ended
        assert bool(row) is not ended


def test_transitions_are_monotonic():
    order = list(State)
    assert all(order.index(after) >= order.index(before) for before, row in TRANSITIONS.items() for after in row.values())


@pytest.mark.parametrize("role", Role)
def test_check_frame_tells_a_wrong_time_from_a_wrong_side(role):
    with pytest.raises(PeerError, match="a frame 0x30 while the session is idle"):
        check_frame(role, State.IDLE, queue.COMMAND)
    with pytest.raises(PeerError, match="a frame 0x99 while"):
        check_frame(role, State.OPERATIONAL, 0x99)
    kind = queue.COMMAND if role is Role.CLIENT else queue.ADVANCE
    with pytest.raises(PeerError, match=f"from the wrong side: only the {role.value} sends it"):
        check_frame(role, State.OPERATIONAL, kind)
