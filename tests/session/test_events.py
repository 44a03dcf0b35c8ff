"""Events on the queue lane (H21): what the host does with them, and the answers."""

from tests.golden.frames import NEW_EVENT
from tests.session.pair import Pair

from remora.errors import ClosedError
from remora.session.events import AllocateReceived, EventAsked, EventTold
from remora.wire.queue import EVENT_CREATE, EVENT_QUERY, EVENT_RESET, EVENT_SIGNAL, EVENT_WAIT


def test_h21_what_the_host_does_comes_in_its_order_between_the_commands():
    pair = Pair.up()
    pair.client.event(EVENT_CREATE, NEW_EVENT, device=1)
    buffer = pair.client.allocate(0, 8)
    pair.client.event(EVENT_SIGNAL, NEW_EVENT)
    pair.client.event(EVENT_RESET, NEW_EVENT)
    pair.client.event(EVENT_WAIT, NEW_EVENT, number=1)
    assert pair.move_queue(pair.client) == [
        EventAsked(EVENT_CREATE, 1, NEW_EVENT, 0),
        AllocateReceived(0, buffer, 8),
        EventAsked(EVENT_SIGNAL, 0, NEW_EVENT, 0),
        EventAsked(EVENT_RESET, 0, NEW_EVENT, 0),
        EventAsked(EVENT_WAIT, 0, NEW_EVENT, 1),
    ]


def test_h21_a_query_is_answered_with_a_state_or_with_why_there_is_none():
    pair = Pair.up()
    pair.server.event_state(EVENT_QUERY, NEW_EVENT, 1, state=True)
    pair.server.event_state(EVENT_QUERY, NEW_EVENT, 2, state=ClosedError("gone"))
    good, bad = pair.move_queue(pair.server)
    assert good == EventTold(EVENT_QUERY, NEW_EVENT, 1, True)
    assert (type(bad.state), bad.state.message, bad.number) == (ClosedError, "gone", 2)
