"""G07: submit never waits; capacity, slots, producers; completions are waited for, cancelled, awaited, profiled, dropped."""

import asyncio
import threading

import pytest
from tests.graph.graphs import SOON, filling

from remora.errors import BusyError, DeadlineError, DeviceError, Status, UsageError
from remora.graph import LaneName, Runtime
from remora.hal.buffer import Access


def holding(runtime, view, name="holds"):
    """A graph with a callback that stays until the event is set, and then a fill; and that event."""
    event = Hold()
    graph = runtime.graph()
    graph.call(event, [(view, Access.WRITE)], name=name)
    graph.fill(view, b"\2")
    return graph.prepare(), event


class Hold:
    """A callback that waits for the test."""

    def __init__(self):
        self.began, self._go = threading.Event(), threading.Event()

    def __call__(self, memory):
        self.began.set()
        assert self._go.wait(SOON)

    def set(self):
        self._go.set()


def test_g07_submit_waits_for_nothing_and_says_when_there_is_no_room(domain, stepped):
    runtime = domain(max_submissions=3, graph_slots=2)
    buffers = [runtime.allocate(16) for _ in range(3)]
    graphs = [filling(runtime, buffer) for buffer in buffers]
    stepped.run()
    kept = [graphs[0].submit(), graphs[0].submit()]
    with pytest.raises(BusyError, match="all 2 slots"):
        graphs[0].submit()
    kept.append(graphs[1].submit())
    with pytest.raises(BusyError, match="3 submissions are pending"):
        graphs[2].submit()
    assert stepped.todo() == 3
    stepped.step(0)
    kept.append(graphs[2].submit())
    stepped.run()
    assert all(each.done for each in kept)


def test_g07_a_completion_that_is_held_takes_its_slot_until_it_is_dropped_or_closed(domain, stepped):
    runtime = domain(graph_slots=1)
    graph = filling(runtime, runtime.allocate(16))
    done = graph.submit()
    stepped.run()
    done.wait(SOON)
    with pytest.raises(BusyError, match="still held"):
        graph.submit()
    done.close()
    again = graph.submit()
    stepped.run()
    assert again.done
    del again
    graph.submit()
    stepped.run()


def test_r08_a_graph_with_one_slot_can_be_submitted_right_after_each_wait(device):
    from remora.graph import RuntimeOptions

    with Runtime(device, options=RuntimeOptions(graph_slots=1)) as runtime:
        graph = filling(runtime, runtime.allocate(16))
        for _ in range(256):
            graph.submit().wait(SOON)


def test_r07_what_only_the_runtime_holds_is_no_observer(domain, stepped):
    """A submission whose completion nobody looks at gives its slot back by ending."""
    runtime = domain(graph_slots=1)
    graph = filling(runtime, runtime.allocate(16))
    for _ in range(5):
        graph.submit()
        stepped.run()


def test_g07_a_timeout_changes_nothing_and_results_are_for_who_waits(domain, stepped):
    runtime = domain()
    done = filling(runtime, runtime.allocate(16)).submit()
    with pytest.raises(DeadlineError, match="goes on"):
        done.wait(0.01)
    with pytest.raises(BusyError, match="has not ended"):
        done.result()
    stepped.run()
    for _ in range(2):
        done.wait(SOON)
        done.result()
    profile = done.profile()
    assert 0 <= profile.queue_us <= profile.elapsed_us


def test_g07_several_threads_may_wait(domain, stepped):
    runtime = domain()
    done = filling(runtime, runtime.allocate(16)).submit()
    ended = []
    threads = [threading.Thread(target=lambda: ended.append(done.wait(SOON))) for _ in range(5)]
    for thread in threads:
        thread.start()
    stepped.run()
    for thread in threads:
        thread.join(SOON)
    assert ended == [None] * 5


def test_g07_completions_are_awaited(runtime):
    buffer = runtime.allocate(16)
    graph, event = holding(runtime, buffer)

    async def main():
        done = graph.submit()
        waiting = [asyncio.ensure_future(wait(done)) for _ in range(6)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        waiting[0].cancel()
        event.set()
        await asyncio.wait_for(asyncio.gather(*waiting[1:]), SOON)
        await done
        return done.done

    async def wait(done):
        await done

    assert asyncio.run(main())


def test_g07_a_failure_reaches_who_awaits(runtime):
    buffer = runtime.allocate(16)
    graph = runtime.graph()
    graph.call(lambda memory: 1 // 0, [(buffer, Access.WRITE)])

    async def main():
        await asyncio.wait_for(wait(graph.prepare().submit()), SOON)

    async def wait(done):
        await done

    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        asyncio.run(main())


def test_g07_a_loop_that_closed_meanwhile_is_not_disturbed(domain, stepped):
    runtime = domain()
    done = filling(runtime, runtime.allocate(16)).submit()

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(done), 0.01)

    async def wait(done):
        await done

    asyncio.run(main())
    stepped.run()
    assert done.done


def test_i13_who_brings_news_waits_for_nobody(domain, stepped):
    """The thread that reads a device's answers must not wait for a thread that holds the runtime, which may wait for answers."""
    runtime = domain()
    done = filling(runtime, runtime.allocate(16)).submit()
    with runtime.scheduler.lock:
        runtime.scheduler.watch(done._submission)
    with runtime.scheduler.lock:
        reader = threading.Thread(target=stepped.run)
        reader.start()
        reader.join(SOON)
        assert not reader.is_alive()
    done.wait(SOON)


def test_g07_submit_after_orders_what_shares_no_bytes(domain, stepped):
    runtime = domain()
    a, b = runtime.allocate(16), runtime.allocate(16)
    graph = runtime.graph()
    graph.upload(a, bytes(16))
    upload = graph.prepare()
    stepped.run()
    first = upload.submit()
    second = filling(runtime, b).submit_after([first])
    assert not stepped.lanes[LaneName.COMPUTE].step()
    stepped.step(LaneName.UPLOAD)
    stepped.step(LaneName.COMPUTE)
    assert second.done


def test_g07_a_producer_of_another_runtime_is_refused(domain, device):
    with Runtime(device) as other, pytest.raises(UsageError, match="another runtime"):
        runtime = domain()
        filling(runtime, runtime.allocate(16)).submit_after([filling(other, other.allocate(16)).submit()])


def test_g07_a_consumer_waits_for_a_producer_that_the_host_holds(runtime):
    graph, event = holding(runtime, runtime.allocate(16))
    first = graph.submit()
    second = filling(runtime, runtime.allocate(16)).submit_after([first])
    assert not second.done
    event.set()
    second.wait(SOON)
    assert first.done


def test_r04_cancelling_wakes_who_waits_and_drains_what_runs(runtime):
    buffer = runtime.allocate(16)
    graph, event = holding(runtime, buffer)
    behind = filling(runtime, buffer, 7)
    first, second = graph.submit(), behind.submit()
    ended = threading.Event()

    def wait():
        with pytest.raises(DeviceError, match="cancelled"):
            second.wait(SOON)
        ended.set()

    waits = threading.Thread(target=wait)
    waits.start()
    assert second.cancel()
    assert ended.wait(SOON)
    waits.join(SOON)
    assert second.done
    assert event.began.wait(SOON)
    with pytest.raises(DeviceError, match="cancelled") as caught:
        second.result()
    assert caught.value.code is Status.CANCELLED
    assert first.cancel()  # its callback runs, its fill is held
    assert not first.done
    event.set()
    with pytest.raises(DeviceError, match="cancelled"):
        first.wait(SOON)
    filling(runtime, buffer, 5).submit().wait(SOON)


def test_g07_what_devices_have_cannot_be_cancelled(domain, stepped):
    runtime = domain()
    done = filling(runtime, runtime.allocate(16)).submit()
    assert not done.cancel()
    stepped.run()
    done.wait(SOON)
    assert not done.cancel()


def test_i04_a_cancelled_producer_fails_its_consumer_and_poisons_nothing(runtime):
    a, b = runtime.allocate(16), runtime.allocate(16)
    graph, event = holding(runtime, a)
    producer = graph.submit()
    consumer = filling(runtime, b).submit_after([producer])
    assert event.began.wait(SOON)
    assert producer.cancel()
    event.set()
    with pytest.raises(DeviceError, match="dependency failed: it was cancelled"):
        consumer.wait(SOON)
    for buffer in (a, b):
        filling(runtime, buffer).submit().wait(SOON)


def test_i03_a_held_submission_that_goes_lets_go_of_what_waited_for_it(runtime):
    a, b = runtime.allocate(16), runtime.allocate(16)
    graph, event = holding(runtime, a)
    graph.submit()
    both = runtime.graph()
    both.copy(a, b)
    middle = both.prepare().submit()
    last = filling(runtime, b).submit()
    assert middle.cancel()
    assert not last.done  # it stands behind the held lane
    event.set()
    last.wait(SOON)


def test_r06_owners_are_let_go_before_the_completion_says_so(runtime):
    import gc
    import weakref

    buffer = runtime.allocate(16)
    graph = filling(runtime, buffer)
    storage = weakref.ref(buffer.storage)
    del buffer
    done = graph.submit()
    done.wait(SOON)
    del graph
    gc.collect()
    assert storage() is None
    assert done.done


def test_i18_a_long_chain_of_producers_is_not_kept(runtime):
    import gc
    import weakref

    graph = filling(runtime, runtime.allocate(16))
    done = graph.submit()
    first = weakref.ref(done._submission)
    for _ in range(3):
        done = graph.submit_after([done])
        done.wait(SOON)
    gc.collect()
    assert first() is None


def test_g07_close_drains_and_refuses(device):
    runtime = Runtime(device)
    graph, event = holding(runtime, runtime.allocate(16))
    done = graph.submit()
    with pytest.raises(DeadlineError, match="still pending"):
        runtime.close(timeout=0.01)
    event.set()
    runtime.close(timeout=SOON)
    runtime.close()
    assert done.done
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("remora graph")]


def test_r38_a_callback_may_be_the_one_that_closes(device):
    runtime = Runtime(device)
    buffer, closed = runtime.allocate(16), threading.Event()
    graph = runtime.graph()

    def close(memory):
        with pytest.raises(DeadlineError):
            runtime.close(timeout=0.01)
        closed.set()

    graph.call(close, [(buffer, Access.WRITE)])
    graph.prepare().submit().wait(SOON)
    assert closed.wait(SOON)
    runtime.close(timeout=SOON)


def test_i18_everything_is_bounded(domain, stepped):
    """A thousand submissions leave nothing behind that grows."""
    runtime = domain()
    a, b = runtime.allocate(16), runtime.allocate(16)
    graph = runtime.graph()
    graph.fill(a)
    graph.copy(a, b, LaneName.DOWNLOAD)
    replay = graph.prepare()
    for _ in range(1000):
        replay.submit()
        stepped.run()
    scheduler = runtime.scheduler
    runtime.statistics()
    assert scheduler.pending == []
    assert sum(len(lane.values) + len(lane.held) for lane in scheduler.lanes) == 0
    assert len(scheduler.frontier) == 2


def test_replay_allocates_nothing_that_grows(runtime):
    import gc
    import tracemalloc

    graph = filling(runtime, runtime.allocate(64))
    for _ in range(100):
        graph.submit().wait(SOON)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(200):
            graph.submit().wait(SOON)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            graph.submit().wait(SOON)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2000
    finally:
        tracemalloc.stop()


def test_g07_times_are_those_of_the_end_and_not_of_who_looks(runtime):
    done = filling(runtime, runtime.allocate(16)).submit()
    done.wait(SOON)
    first = done.profile()
    assert done.profile() == first


def test_r04_a_run_is_taken_or_dropped_and_never_both(runtime, monkeypatch):
    """Cancelling in the moment in which the host thread has chosen its run, and before it begins."""
    from remora.graph import host

    a, whole, submitted, called = runtime.allocate(16), host.perform, [], []

    def late(scheduler, run, call):
        if run.submission is submitted[0]._submission:
            submitted[0].cancel()
        return whole(scheduler, run, call)

    monkeypatch.setattr(host, "perform", late)
    graph = runtime.graph()
    graph.call(lambda memory: called.append(1), [(a, Access.WRITE)])
    graph.fill(a, b"\3")
    with runtime.scheduler.lock:
        submitted.append(graph.prepare().submit())
        behind = runtime.graph()
        behind.call(lambda memory: called.append(2), [(a, Access.WRITE)])
        after = behind.prepare().submit()
    with pytest.raises(DeviceError, match="cancelled"):
        submitted[0].wait(SOON)
    after.wait(SOON)
    assert called == [2]
    assert not any(lane.held for lane in runtime.scheduler.lanes)
