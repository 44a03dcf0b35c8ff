"""H26: a connection moves from the server's parent process to the session's with all that its address asked for."""

import socket

import pytest

from remora.carriers.registry import connect, listen
from remora.errors import BrokenError
from remora.server.handover import hand_over, take_over
from remora.session.state import Lane


@pytest.fixture
def supervisors():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("query", ["", "?spin_us=0", "?spin_us=25"])
@pytest.mark.parametrize("scheme", ["tcp", "unix", "shm"])
def test_h26_a_lane_is_handed_over_with_its_bytes_peer_and_polling(supervisors, scheme, query, tmp_path):
    place = "127.0.0.1:0" if scheme == "tcp" else f"{tmp_path}/socket"
    with listen(f"{scheme}://{place}{query}") as listener, connect(listener.address.partition("?")[0]) as client:
        client.activate()
        carrier = listener.accept(10)
        peer = carrier.peer
        carrier.activate()
        client.send(b"first words")
        hand_over(supervisors[0], Lane.QUEUE, carrier)
        lane, heir = take_over(supervisors[1], scheme)
        with heir:
            assert lane is Lane.QUEUE
            assert heir.peer == peer
            assert heir.spin_us == {"": None, "?spin_us=0": 0, "?spin_us=25": 25}[query]
            assert bytes(heir.receive(10).view) == b"first words"


def test_h26_a_parent_that_is_gone_hands_nothing_over(supervisors):
    supervisors[0].close()
    with pytest.raises(BrokenError, match="the server stopped before the session began"):
        take_over(supervisors[1], "tcp")


def test_h26_a_session_that_is_gone_costs_the_parent_nothing(supervisors):
    supervisors[1].close()
    with listen("tcp://127.0.0.1:0") as listener, connect(listener.address) as client:
        client.activate()
        carrier = listener.accept(10)
        carrier.activate()
        hand_over(supervisors[0], Lane.QUEUE, carrier)
        with pytest.raises(BrokenError):
            client.receive(10)
