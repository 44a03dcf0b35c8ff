"""G08: a failed device poisons and quarantines, a failed dependency does not; nothing is freed early; interrupts change nothing."""

import gc
import signal
import threading

import pytest
from tests.graph.graphs import SOON, failing, filling

import remora
from remora import samples
from remora.errors import BusyError, ClosedError, DeviceError, DeviceLostError, UsageError
from remora.graph import HOST_VISIBLE, LaneName, MemoryBudget, Runtime, RuntimeOptions
from remora.hal.buffer import Access


def test_g08_a_device_failure_poisons_all_that_the_graph_touches_and_its_graph(domain, stepped):
    runtime = domain()
    source, target, other = (runtime.allocate(16, HOST_VISIBLE) for _ in range(3))
    graph = runtime.graph("broken")
    graph.copy(source, target)
    replay = graph.prepare()
    stepped.run()
    done = replay.submit()
    stepped.lanes[LaneName.COMPUTE].fail(DeviceError("the kernel read a wild address"))
    with pytest.raises(DeviceError, match=r"executing region 0 of the graph on the lane compute: the kernel read a wild address"):
        done.wait(SOON)
    for poisoned in (source, target):  # also what it only read
        with pytest.raises(DeviceLostError, match=r"contents are unknown.*wild address"):
            poisoned.read()
    with pytest.raises(DeviceLostError, match="quarantined"):
        replay.submit()
    other.read().close()
    with pytest.raises(DeviceLostError, match=r"lane compute has failed.*make a new runtime"):
        filling(runtime, other).submit()
    up = runtime.graph()
    up.upload(other, bytes(16))
    healthy = up.prepare().submit()  # the other lanes go on
    stepped.step(LaneName.UPLOAD)
    healthy.wait(SOON)


def test_g08_what_a_failed_device_had_is_kept_until_the_runtime_closes(stepped):
    budget = MemoryBudget(1000)
    runtime = Runtime(stepped, options=RuntimeOptions(memory_budget=budget))
    buffer = runtime.allocate(100)
    replay = filling(runtime, buffer)
    stepped.run()
    done = replay.submit()
    stepped.lanes[0].fail(DeviceError("gone"))
    with pytest.raises(DeviceError, match="gone"):
        done.wait(SOON)
    del buffer, replay, done
    gc.collect()
    assert budget.reserved_bytes == 100
    runtime.close(timeout=SOON)
    gc.collect()
    assert budget.reserved_bytes == 0


def test_g08_a_real_kernel_that_reports_an_error(device):
    runtime = Runtime(device)
    buffer = runtime.allocate(64, HOST_VISIBLE)
    faults = device.load(samples.load("faults"))
    kernel = faults["fail"]
    graph = runtime.graph()
    graph.fill(buffer, b"\1")
    views = [buffer.view(0, 64) for _ in kernel.info.bindings]
    graph.kernel(kernel, views, (7,) * len(kernel.info.constants), grid=(1, 1, 1), aliasing=True)
    done = graph.prepare().submit()
    with pytest.raises(DeviceError, match="executing region 0"):
        done.wait(SOON)
    if views:
        with pytest.raises(DeviceLostError, match="contents are unknown"):
            buffer.read()
    runtime.close(timeout=SOON)


def test_g08_siblings_of_a_failed_region_are_drained_before_the_end(domain, stepped):
    runtime = domain()
    a, b = runtime.allocate(16), runtime.allocate(16)
    graph = runtime.graph()
    graph.fill(a)
    graph.upload(b, bytes(16))
    replay = graph.prepare()
    stepped.run()
    done = replay.submit()
    stepped.lanes[LaneName.COMPUTE].fail(DeviceError("gone"))
    assert not done.done
    stepped.step(LaneName.UPLOAD)
    with pytest.raises(DeviceError, match="gone"):
        done.wait(SOON)


def test_i04_r05_a_failed_dependency_fails_the_consumer_alone(runtime):
    a, b = runtime.allocate(16, HOST_VISIBLE), runtime.allocate(16, HOST_VISIBLE)
    broken, event = failing(runtime, a)
    producer = broken.submit()
    replay = filling(runtime, b)
    consumer = replay.submit_after([producer])
    event.set()
    with pytest.raises(DeviceError, match="ValueError: not today"):
        producer.wait(SOON)
    with pytest.raises(DeviceError, match=r"dependency failed: .*not today"):
        consumer.wait(SOON)
    del consumer
    replay.submit().wait(SOON)
    b.read().close()
    with pytest.raises(DeviceLostError, match="not today"):
        a.read()
    with pytest.raises(DeviceLostError, match="quarantined"):
        broken.submit()


def test_i13_a_callback_that_raises_anything_leaves_the_runtime_working(runtime):
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt(), remora.DeviceError("its own")):
        buffer = runtime.allocate(16)
        graph = runtime.graph()

        def fail(memory, error=error):
            raise error

        graph.call(fail, [(buffer, Access.WRITE)])
        with pytest.raises(DeviceError):
            graph.prepare().submit().wait(SOON)
        filling(runtime, runtime.allocate(16)).submit().wait(SOON)


def test_g08_work_that_waits_for_poisoned_bytes_fails_without_having_run(runtime):
    a, b = runtime.allocate(16), runtime.allocate(16, HOST_VISIBLE)
    first, event = failing(runtime, a)
    second = runtime.graph()
    second.copy(a, b)
    producer = first.submit()
    consumer = second.prepare().submit()
    event.set()
    for each in (producer, consumer):
        with pytest.raises(DeviceError, match="not today"):
            each.wait(SOON)
    b.read().close()  # nothing was launched there, so nothing is unknown


def test_g08_what_a_queue_refuses_fails_the_submission_and_nothing_else(runtime, vector):
    out, other = runtime.allocate(4096, HOST_VISIBLE), runtime.allocate(16)
    kernel = vector["fill_index"]
    graph = runtime.graph()
    graph.kernel(kernel, [out] * len(kernel.info.bindings), (16,) * len(kernel.info.constants), grid=(1, 1, 1), aliasing=True)
    replay = graph.prepare()
    vector.close()
    with pytest.raises(ClosedError, match="closed"):
        replay.submit().wait(SOON)
    out.read().close()
    filling(runtime, other).submit().wait(SOON)


def test_g08_a_lost_connection_ends_everything_with_its_cause():
    from remora.testing.server import ServerProcess

    with ServerProcess() as server, remora.open(server.uri) as device:
        runtime = Runtime(device)
        buffer = runtime.allocate(16, HOST_VISIBLE)
        gate = device.semaphore()
        device.queues[1].barrier(wait=gate.at(1))  # the compute lane stands still
        done = filling(runtime, buffer).submit()
        server.kill()
        with pytest.raises(remora.Error, match="executing region 0"):
            done.wait(SOON)
        with pytest.raises(remora.Error):
            buffer.read()
        with pytest.raises(remora.Error):
            filling(runtime, buffer)
        runtime.close(timeout=SOON)


def test_g08_an_interrupt_in_a_wait_changes_nothing(domain, stepped):
    runtime = domain()
    done = filling(runtime, runtime.allocate(16)).submit()
    main = threading.main_thread().ident
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started with SIGINT ignored
    timer = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            done.wait(SOON)
        timer.join(SOON)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not done.done
    stepped.run()
    done.wait(SOON)


def test_g08_a_closed_device_ends_what_is_pending(stepped):
    runtime = Runtime(stepped)
    done = filling(runtime, runtime.allocate(16)).submit()
    stepped.close()
    with pytest.raises(remora.Error, match="closed"):
        done.wait(SOON)
    runtime.close(timeout=SOON)


def test_r39_a_quarantined_graph_does_not_keep_close_waiting(stepped):
    runtime = Runtime(stepped)
    done = filling(runtime, runtime.allocate(16)).submit()
    stepped.lanes[0].fail(DeviceError("gone"))
    runtime.close(timeout=SOON)
    with pytest.raises(DeviceError, match="gone"):
        done.result()


def test_bad_input_is_named(runtime):
    buffer = runtime.allocate(16)
    graph = runtime.graph()
    slot = graph.slot(16)
    graph.fill(slot)
    replay = graph.prepare()
    with pytest.raises(UsageError, match="must name every slot"):
        replay.submit()
    with pytest.raises(UsageError, match="got 8 bytes"):
        replay.submit({slot: buffer.view(8)})
    with pytest.raises(UsageError, match="no whole slot of this graph"):
        replay.submit({runtime.graph().slot(16): buffer})
    with pytest.raises(UsageError, match="at least one byte"):
        runtime.graph().slot(0)
    with pytest.raises(BusyError), buffer.storage.scheduler.lock:
        buffer.storage.lend(writes=True)
        replay.submit({slot: buffer})
