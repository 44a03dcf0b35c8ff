"""H05: what a caller waits for survives Ctrl-C at each of its steps: nobody hangs, nothing stays taken."""

import contextlib
import threading

import pytest

from remora.link.latch import Latch, Turn
from remora.testing.interrupts import Interrupts

LONG = 20.0


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_h05_a_latch_wakes_all_who_wait_and_stays_set():
    latch, woken = Latch(), []
    threads = [in_a_thread(lambda: woken.append(latch.wait(LONG))) for _ in range(4)]
    assert not latch.is_set()
    assert latch.wait(0.001) is False
    latch.set()
    latch.set()
    for thread in threads:
        thread.join(LONG)
    assert woken == [True] * 4
    assert latch.is_set()
    assert latch.wait()


@pytest.mark.interpreted
def test_h05_a_wait_for_a_latch_may_be_interrupted_at_each_of_its_steps():
    interrupts = Interrupts()
    first = Latch()
    places = interrupts.places(lambda: first.wait(0.001))
    assert len(places) > 3
    for place in places:
        latch = Latch()
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.strike(place, lambda latch=latch: latch.wait(0.001))
        assert interrupts.struck, place
        other = in_a_thread(lambda latch=latch: latch.wait(LONG))
        setter = in_a_thread(latch.set)
        for thread in (setter, other):
            thread.join(LONG)
            assert not thread.is_alive(), place


def take(turn):
    for mine in turn.attempt:
        if not mine:
            return False
        break
    try:
        return True
    finally:
        turn.release()


def test_h05_a_turn_is_one_threads_at_a_time():
    turn = Turn()
    assert take(turn)
    assert not turn.locked()
    for mine in turn.attempt:
        assert mine
        break
    assert turn.locked()
    assert not take(turn)
    turn.release()
    assert take(turn)
