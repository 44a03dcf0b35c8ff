"""The states of a session, and which frame may come when. Everything that changes state is in these tables.

`TRANSITIONS` and `FRAMES` do not know which role this side plays: client and server run the same ones, and a message means the same
to the side that sends it and the side that receives it. `SENDER` says which role may send what.

    IDLE --HELLO--> GREETING --ACCEPT--> JOINING --JOINED--> JOINING --JOINED--> OPERATIONAL --CLOSE--> CLOSED
                        |                                                            |
                        +--REJECT--> FAILED <-- FAIL from every living state --------+
"""

from __future__ import annotations

from enum import Enum, IntEnum

from remora.errors import PeerError
from remora.wire import bootstrap, control, profile, queue

__all__ = ["FRAMES", "SENDER", "TRANSITIONS", "Lane", "Role", "State", "Stimulus", "check_frame", "lanes_of", "next_state"]


class Role(Enum):
    """Which side of the session this is."""

    CLIENT = "client"
    SERVER = "server"


class Lane(IntEnum):
    """The ordered streams of a session; the numbers travel in JOIN. The bulk lane may have more connections than one."""

    CONTROL = 0
    QUEUE = 1
    BULK = 2
    BULK_2 = 3
    BULK_3 = 4
    BULK_4 = 5
    BULK_5 = 6
    BULK_6 = 7
    BULK_7 = 8
    BULK_8 = 9


def lanes_of(bulk: int) -> tuple[Lane, ...]:
    """The connections of a session whose bulk lane has `bulk` of them, in the order in which they join."""
    return tuple(Lane)[: Lane.BULK + bulk]


class State(Enum):
    """Transitions are monotonic: no state is entered twice after it was left."""

    IDLE = "idle"
    GREETING = "greeting"
    """HELLO is on its way or arrived."""
    JOINING = "joining"
    """Accepted; the other two lanes are being joined."""
    OPERATIONAL = "operational"
    CLOSED = "closed"
    """This side ended it."""
    FAILED = "failed"
    """Anything else ended it; `Session.failure` says what."""


class Stimulus(Enum):
    """What moves a session."""

    HELLO = "hello"
    ACCEPT = "accept"
    REJECT = "reject"
    LANE = "lane"
    """One lane joined, another is missing."""
    LANES = "lanes"
    """The last lane joined."""
    CLOSE = "close"
    FAIL = "fail"


TRANSITIONS: dict[State, dict[Stimulus, State]] = {
    State.IDLE: {
        Stimulus.HELLO: State.GREETING,
        Stimulus.CLOSE: State.CLOSED,
        Stimulus.FAIL: State.FAILED,
    },
    State.GREETING: {
        Stimulus.ACCEPT: State.JOINING,
        Stimulus.REJECT: State.FAILED,
        Stimulus.CLOSE: State.CLOSED,
        Stimulus.FAIL: State.FAILED,
    },
    State.JOINING: {
        Stimulus.LANE: State.JOINING,
        Stimulus.LANES: State.OPERATIONAL,
        Stimulus.CLOSE: State.CLOSED,
        Stimulus.FAIL: State.FAILED,
    },
    State.OPERATIONAL: {
        Stimulus.CLOSE: State.CLOSED,
        Stimulus.FAIL: State.FAILED,
    },
    State.CLOSED: {},
    State.FAILED: {},
}


#: frame kind -> who may send it.
SENDER: dict[int, frozenset[Role]] = {
    **dict.fromkeys((bootstrap.HELLO, control.REQUEST, profile.TAKEN), frozenset({Role.CLIENT})),
    **dict.fromkeys((queue.COMMAND, queue.ALLOCATE, queue.RELEASE, queue.EVENT), frozenset({Role.CLIENT})),
    **dict.fromkeys((bootstrap.ACCEPT, bootstrap.REJECT, control.RESPONSE, profile.RECORDS), frozenset({Role.SERVER})),
    **dict.fromkeys((queue.ADVANCE, queue.RESULT, queue.UNNAMED, queue.STATE), frozenset({Role.SERVER})),
    **dict.fromkeys((control.PING, control.PONG, control.GOAWAY, control.FAILURE), frozenset(Role)),
}

_ANY_TIME = frozenset({control.PING, control.PONG, control.GOAWAY, control.FAILURE})

#: The state of the receiving side -> the frames that may come. JOIN and JOINED open a lane and never come to the machine.
FRAMES: dict[State, frozenset[int]] = {
    State.IDLE: frozenset({bootstrap.HELLO}),
    State.GREETING: frozenset({bootstrap.ACCEPT, bootstrap.REJECT}),
    State.JOINING: _ANY_TIME,
    State.OPERATIONAL: frozenset(SENDER) - {bootstrap.HELLO, bootstrap.ACCEPT, bootstrap.REJECT},
    State.CLOSED: frozenset(),
    State.FAILED: frozenset(),
}


def check_frame(role: Role, state: State, kind: int) -> None:
    """Raise PeerError unless a frame of this kind may come to a side with this role in this state."""
    if kind not in FRAMES[state]:
        raise PeerError(f"a frame {kind:#x} while the session is {state.value}")
    if SENDER[kind] == {role}:
        raise PeerError(f"a frame {kind:#x} from the wrong side: only the {role.value} sends it")


def next_state(state: State, stimulus: Stimulus) -> State:
    """Where a stimulus leads. Raises PeerError when it cannot come in this state."""
    try:
        return TRANSITIONS[state][stimulus]
    except KeyError:
        raise PeerError(f"{stimulus.value} while the session is {state.value}") from None
