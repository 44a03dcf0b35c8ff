"""Beside small commands, transfers move in small pieces and let others run in between; alone they do not (H02)."""

import itertools
import os
import random

import pytest
from tests.link.lanes import Ends, connected, facing

import remora
from remora.link.courtesy import PIECE, REMEMBERED, Courtesy
from remora.testing.server import ServerProcess
from remora.wire.bulk import CHUNK


class Commands:
    """A count of commands that the test moves."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        return self.count


@pytest.fixture
def commands():
    return Commands()


@pytest.fixture
def yields(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "sched_yield", lambda: calls.append(None))
    return calls


def test_h02_a_transfer_that_is_alone_keeps_its_core(commands, yields):
    courtesy = Courtesy(commands)
    for _ in range(10):
        assert courtesy.step(CHUNK) == CHUNK
        courtesy.give_way()
    assert not yields


def test_h02_the_command_that_brings_a_transfer_does_not_slow_it(commands, yields):
    courtesy = Courtesy(commands)
    commands.count += 1
    courtesy.begin()
    courtesy.give_way()
    assert courtesy.step(CHUNK) == CHUNK
    commands.count += 1
    courtesy.give_way()
    courtesy.begin()
    assert courtesy.step(CHUNK) == PIECE
    assert len(yields) == 1


def test_h02_a_transfer_beside_a_command_yields_after_each_piece_until_commands_have_been_gone_for_a_while(commands, yields):
    courtesy = Courtesy(commands)
    commands.count += 1
    courtesy.give_way()
    for _ in range(REMEMBERED - 1):
        assert courtesy.step(CHUNK) == PIECE
        assert courtesy.step(9) == 9
        courtesy.give_way()
    assert courtesy.step(CHUNK) == CHUNK
    assert len(yields) == REMEMBERED
    commands.count += 1
    courtesy.give_way()
    assert courtesy.step(CHUNK) == PIECE


@pytest.mark.parametrize("moving", [False, True])
def test_h02_pieces_make_up_the_same_bytes(moving):
    """With commands all the time, and with none: the transfer arrives whole, in sends of the size that was asked for."""
    size, ends = 8 * CHUNK + 5, Ends()
    with connected() as carriers, facing(carriers, itertools.count().__next__ if moving else lambda: 0) as (near, far, broken):
        data, room = random.Random(1).randbytes(size), bytearray(size)
        far.expect(1, memoryview(room), ends.of("arrived"))
        near.send(1, memoryview(data), ends.of("sent"))
        assert ends.wait("arrived", "sent") == [[None], [None]]
        sends = carriers[0].statistics().sends
        assert room == data
        assert not broken
    assert sends >= 7 * CHUNK // PIECE if moving else sends <= 10  # the first chunk shows that commands move


def test_h02_commands_of_a_session_move_the_count_that_transfers_look_at():
    with ServerProcess() as server, remora.open(server.uri) as device:
        link = device.host.link
        before = link.commands_moved()
        device.queue.barrier().wait(10)
        assert link.commands_moved() > before
        assert all(strand._sending._activity() == link.commands_moved() for strand in link.bulk._strands)
