"""G03: host guards lease an allocation: guard against guard, guard against pending work, submission against a guard."""

import threading

import pytest
from tests.graph.graphs import SOON, filling

from remora.errors import BusyError, ClosedError, DeadlineError, UnsupportedError, UsageError
from remora.graph import DEVICE, HOST_VISIBLE


def reading(runtime, view):
    graph = runtime.graph()
    graph.copy(view, runtime.allocate(view.size))
    return graph.prepare()


def test_g03_a_guard_shows_and_changes_the_bytes(runtime):
    buffer = runtime.allocate(16, HOST_VISIBLE)
    with buffer.view(4, 4).write(SOON) as guard:
        guard.view[:] = b"abcd"
    with buffer.read(SOON) as guard:
        assert bytes(guard.view) == bytes(4) + b"abcd" + bytes(8)
        assert guard.view.readonly
    with pytest.raises(UsageError, match="was closed"):
        _ = guard.view


def test_g03_memory_of_the_device_alone_is_not_mapped(runtime):
    with pytest.raises(UnsupportedError, match="HOST_VISIBLE"):
        runtime.allocate(16, DEVICE).read()


def test_g03_readers_share_and_a_writer_is_alone(runtime):
    buffer = runtime.allocate(16, HOST_VISIBLE)
    with buffer.read() as one, buffer.view(0, 4).read() as two:
        assert bytes(one.view[:4]) == bytes(two.view)
        with pytest.raises(BusyError, match="already"):
            buffer.view(8).write()
    with buffer.view(0, 4).write():
        for again in (buffer.view(8).read, buffer.view(8).write, buffer.view(8).try_read, buffer.view(8).try_write):
            with pytest.raises(BusyError, match="already"):
                again()
    buffer.write().close()


def test_g03_a_submission_against_a_guard_is_busy_and_takes_nothing(runtime):
    buffer = runtime.allocate(16, HOST_VISIBLE)
    writes, reads = filling(runtime, buffer), reading(runtime, buffer)
    with buffer.read():
        with pytest.raises(BusyError, match="mapped by the host"):
            writes.submit()
        reads.submit().wait(SOON)
    with buffer.write():
        for graph in (writes, reads):
            with pytest.raises(BusyError, match="mapped by the host"):
                graph.submit()
    before = runtime.statistics().submissions
    writes.submit().wait(SOON)
    assert runtime.statistics().submissions == before + 1


def test_g03_try_is_busy_while_work_is_pending(domain, stepped):
    runtime = domain()
    buffer, other = runtime.allocate(16, HOST_VISIBLE), runtime.allocate(16, HOST_VISIBLE)
    stepped.run()
    done = filling(runtime, buffer).submit()
    for attempt in (buffer.try_read, buffer.try_write):
        with pytest.raises(BusyError, match="pending work"):
            attempt()
    other.try_write().close()
    stepped.step(0)
    assert done.done
    buffer.try_write().close()


def test_g03_readers_do_not_wait_for_work_that_reads(domain, stepped):
    runtime = domain()
    buffer = runtime.allocate(16, HOST_VISIBLE)
    graph = reading(runtime, buffer)
    stepped.run()
    done = graph.submit()
    with buffer.try_read() as guard:
        assert bytes(guard.view) == bytes(16)
    with pytest.raises(BusyError, match="pending work"):
        buffer.try_write()
    assert not done.done


def test_g03_a_guard_waits_for_pending_work_and_for_no_longer_than_told(domain, stepped):
    runtime = domain()
    buffer = runtime.allocate(16, HOST_VISIBLE)
    stepped.run()
    done = filling(runtime, buffer, 9).submit()
    with pytest.raises(DeadlineError, match="in the time given"):
        buffer.write(timeout=0.01)
    got = []
    waiter = threading.Thread(target=lambda: got.append(bytes(buffer.read(SOON).view)))
    waiter.start()
    stepped.step(0)
    waiter.join(SOON)
    assert got == [b"\x09" * 16]
    assert done.done


def test_r02_r03_a_guard_that_cannot_be_made_leaves_no_lease(runtime, monkeypatch):
    buffer = runtime.allocate(16, HOST_VISIBLE)
    memory = buffer.storage.replicas[0]

    def refuse(*_):
        raise ClosedError("no mapping today")

    for make in (buffer.read, buffer.write):
        with monkeypatch.context() as patch:
            patch.setattr(type(memory), "_map", refuse)
            with pytest.raises(ClosedError, match="today"):
                make()
        filling(runtime, buffer).submit().wait(SOON)
        make().close()


def test_r02_nothing_of_ours_is_locked_while_memory_is_mapped(runtime, monkeypatch):
    buffer, other = runtime.allocate(16, HOST_VISIBLE), runtime.allocate(16, HOST_VISIBLE)
    memory = buffer.storage.replicas[0]
    whole, found = type(memory)._map, []

    def look(self, *args):
        if self is memory:
            beside = threading.Thread(target=lambda: found.append(filling(runtime, other).submit()))
            beside.start()
            beside.join(SOON)
            assert not beside.is_alive()
        return whole(self, *args)

    monkeypatch.setattr(type(memory), "_map", look)
    buffer.write().close()
    found[0].wait(SOON)


def test_g03_a_guard_is_closed_once_and_its_views_are_its_own(runtime):
    buffer = runtime.allocate(16, HOST_VISIBLE)
    guard = buffer.write()
    kept = guard.view[:4]
    kept[:] = b"abcd"
    guard.close()
    guard.close()
    filling(runtime, buffer).submit().wait(SOON)
    with buffer.read() as guard:
        assert bytes(guard.view) == b"\1" * 16


def test_g03_an_error_in_the_block_is_not_hidden(runtime):
    buffer = runtime.allocate(16, HOST_VISIBLE)
    with pytest.raises(ZeroDivisionError), buffer.write() as guard:
        kept = guard.view[:]
        assert kept[0] // 0
    buffer.try_write().close()


def test_g03_a_mapped_buffer_is_not_closed(runtime):
    buffer = runtime.allocate(16, HOST_VISIBLE)
    with buffer.read(), pytest.raises(BusyError, match="close the guard"):
        buffer.close()
    buffer.close()


def test_i01_submissions_and_guards_of_many_threads_never_overlap(runtime):
    """A guard that is there sees no change; what a graph writes is whole."""
    buffer = runtime.allocate(4096, HOST_VISIBLE)
    graphs = [filling(runtime, buffer, value) for value in range(1, 5)]
    wrong, stop = [], threading.Event()

    def submit(graph):
        while not stop.is_set():
            try:
                graph.submit().wait(SOON)
            except BusyError:
                continue

    def look():
        for _ in range(100):
            try:
                with buffer.read(SOON) as guard:
                    if len(set(bytes(guard.view))) != 1:
                        wrong.append(bytes(guard.view))
            except BusyError:
                continue

    threads = [threading.Thread(target=submit, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    look()
    stop.set()
    for thread in threads:
        thread.join(SOON)
    assert wrong == []
