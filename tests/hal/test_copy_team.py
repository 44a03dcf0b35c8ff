"""H32: a large copy shared by threads is the copy that one makes, and leaves no thread."""

import random
import threading

import pytest

from remora.errors import BusyError
from remora.hal import copy_team
from remora.hal.copy_team import ALIGNMENT, MOST, CopyTeam, helpers_here

WIDE = 64 << 10


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setattr(copy_team, "WIDE", WIDE)


@pytest.fixture
def team_of():
    teams = []

    def make(count):
        teams.append(CopyTeam(count, "test"))
        return teams[-1]

    yield make
    for team in teams:
        team.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "test"]


SIZES = [0, 1, WIDE - 1, WIDE, WIDE + 1, 3 * ALIGNMENT + 5, 17 * ALIGNMENT, 17 * ALIGNMENT + 1, (1 << 20) + 3]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_h32_every_byte_is_copied_once_and_no_other_is_touched(team_of, count, size):
    team = team_of(count)
    source, target = random.Random(size).randbytes(size + 7), bytearray(b"\xee" * (size + 9))
    for _ in range(3):
        team.copy(memoryview(target)[2:], memoryview(source)[3 : 3 + size])
        assert target == b"\xee\xee" + source[3 : 3 + size] + b"\xee" * 7
        target[:] = b"\xee" * len(target)
    assert len(team._threads) == (count if size >= WIDE else 0)


def test_h32_a_team_holds_no_memory_when_a_copy_is_over(team_of):
    team = team_of(2)
    target = bytearray(4 * WIDE)
    with memoryview(target) as view:
        team.copy(view, memoryview(bytes(4 * WIDE)))
    target.append(1)  # BufferError while anybody has a view of it


def test_h32_helpers_that_cannot_start_are_done_without(team_of, monkeypatch):
    started = []

    def start(run, name):
        if started:
            raise BusyError("no more threads")
        started.append(name)
        return real(run, name)

    real = copy_team.start_thread
    monkeypatch.setattr(copy_team, "start_thread", start)
    team = team_of(3)
    source, target = random.Random(1).randbytes(4 * WIDE), bytearray(4 * WIDE)
    team.copy(memoryview(target), memoryview(source))
    assert target == source
    assert team.count == len(team._threads) == 1


@pytest.mark.parametrize(("cores", "helpers"), [(1, 0), (2, 0), (4, 1), (8, 2), (16, 3), (128, MOST)])
def test_h32_a_machine_of_few_cores_has_no_helpers(monkeypatch, cores, helpers):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    assert helpers_here() == helpers
