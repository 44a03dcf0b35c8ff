"""The page table: holds, sweeps, and changes that meet each other (H22). Its ranges are tested by the conformance suite."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import ClosedError, UsageError
from remora.hal.buffer import Access
from remora.hal.page_table import SWEEP_AT, PageTable, Span, Use, joined, submit_using, told
from remora.hal.semaphore import Semaphore
from remora.hal.virtual_memory import MAX_PLACEMENTS
from remora.wire import memory_calls

PAGE = 4096
BOTH = Access.READ_WRITE


@pytest.fixture
def table():
    """Eight pages, the first four mapped."""
    table = PageTable(8 * PAGE, PAGE)
    table.commit(0, 4 * PAGE, [Span(0, 4 * PAGE, "memory", 0, BOTH)])
    return table


def none():
    return ()


def test_h22_both_ends_of_a_link_take_as_many_placements():
    assert MAX_PLACEMENTS == memory_calls.MAX_PLACEMENTS


def test_h22_an_operation_that_is_not_submitted_holds_nothing(table):
    def fail():
        with pytest.raises(UsageError, match="in flight"):
            table.claim_mapped(0, PAGE, none)
        raise ClosedError("the queue has failed")

    with pytest.raises(ClosedError, match="the queue has failed"):
        submit_using([Use(table, 0, 8, BOTH)], fail)
    assert table.claim_mapped(0, PAGE, none)


def test_h22_one_use_that_is_refused_lets_go_of_the_others(table):
    with pytest.raises(UsageError, match="not mapped"):
        submit_using([Use(table, 0, 8, BOTH), Use(table, 6 * PAGE, 8, BOTH)], lambda: pytest.fail("nothing is submitted"))
    table.claim_mapped(0, 4 * PAGE, none)


def test_h22_ended_holds_are_swept(table):
    semaphore = Semaphore()
    for value in range(1, 10 * SWEEP_AT + 1):
        submit_using([Use(table, 0, 8, BOTH)], lambda value=value: semaphore.at(value))
        if value % 3 == 0:
            semaphore.signal(value)
    assert len(table._holds) <= 2 * SWEEP_AT
    with pytest.raises(UsageError, match="in flight"):
        table.claim_mapped(0, PAGE, none)
    semaphore.signal(value + 1)
    table.claim_mapped(0, PAGE, none)


def test_h22_pages_that_are_being_changed_are_not_used(table):
    old = table.claim_mapped(PAGE, PAGE, none)
    with pytest.raises(UsageError, match="allow nothing"):
        table.enter(0, 2 * PAGE, Access.READ)
    table.enter(2 * PAGE, 8, Access.READ).over = True
    table.commit(PAGE, PAGE, old)
    table.enter(0, 4 * PAGE, BOTH)
    assert len(table.spans()) == 1


def test_h22_nothing_enters_a_closed_range(table):
    with pytest.raises(UsageError, match="are mapped"):
        table.claim_end()
    table.commit(0, 4 * PAGE, ())
    table.claim_end()
    for call in (lambda: table.enter(0, 0, BOTH), lambda: table.claim_free([(0, PAGE)]), lambda: table.claim_mapped(0, PAGE, none)):
        with pytest.raises(ClosedError, match="was closed"):
            call()


def test_h22_uses_and_changes_race_and_one_of_them_is_refused(table):
    """Either the operation was first, and the change is refused, or the other way round: never both."""
    semaphore, start, wrong = Semaphore(), threading.Barrier(2, timeout=20), []

    def change():
        for _ in range(300):
            start.wait()
            try:
                old = table.claim_mapped(0, PAGE, none)
            except UsageError:
                continue
            if any(not hold.ended() for hold in table._holds):
                wrong.append("a page was taken that is in use")
            table.commit(0, PAGE, old)

    thread = threading.Thread(target=change)
    thread.start()
    for value in range(1, 301):
        start.wait()
        try:
            submit_using([Use(table, 0, 8, BOTH)], lambda value=value: semaphore.at(value))
        except UsageError:
            continue
        finally:
            semaphore.signal(value)
    thread.join(20)
    assert not wrong


def test_h22_accesses_are_told_in_words():
    assert [told(access) for access in (Access(0), Access.READ, Access.WRITE, BOTH)] == [
        "nothing",
        "reading",
        "writing",
        "reading and writing",
    ]


SPANS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.booleans()), max_size=12)


@given(SPANS)
def test_h22_neighbours_that_continue_each_other_are_one(pages):
    spans = [
        Span(index * PAGE, PAGE, ("a", "b")[which], at * PAGE, BOTH if writable else Access.READ)
        for index, (which, at, writable) in enumerate(pages)
    ]
    found = joined(spans)
    flat = [
        Span(span.offset + shift, PAGE, span.physical, span.physical_offset + shift, span.access)
        for span in found
        for shift in range(0, span.length, PAGE)
    ]
    assert flat == spans
    for left, right in pairwise(found):
        assert (left.physical, left.physical_offset + left.length, left.access) != (
            right.physical,
            right.physical_offset,
            right.access,
        )
