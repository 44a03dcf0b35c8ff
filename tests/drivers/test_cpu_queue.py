"""Queues of the cpu driver: bytes move exactly, order and semaphores hold, each operation ends once (H11, H27, D01)."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.drivers.cpu.queue import FILL_BLOCK, HOLD_GIL_BYTES
from remora.errors import ClosedError, DeadlineError, DeviceError, UsageError
from remora.hal.registry import open_devices

SIZE = 200_000
RANGES = st.tuples(st.integers(0, SIZE // 4), st.integers(0, SIZE // 4)).map(
    lambda pair: (pair[0] * 4, min(pair[1] * 4, SIZE - pair[0] * 4))
)
FILLS = st.tuples(st.just("fill"), RANGES, st.sampled_from([b"\0", b"\xaa", b"\x01\x02", b"\x05\x05", b"\x01\x02\x03\x04"]))
UPDATES = st.tuples(st.just("update"), RANGES, st.integers(0, 255))
COPIES = st.tuples(st.just("copy"), RANGES, st.integers(0, SIZE))


@pytest.fixture(scope="module")
def device():
    (opened,) = open_devices("cpu://?threads=2")
    with opened:
        yield opened


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(FILLS, UPDATES, COPIES), max_size=12))
def test_h11_operations_run_in_order_and_move_exact_bytes(device, operations):
    """Fill, update and copy between two buffers, against two bytearrays."""
    models = bytearray(SIZE), bytearray(SIZE)
    queue = device.queue
    with device.allocate(SIZE) as first, device.allocate(SIZE) as second:
        queue.fill(first)
        queue.fill(second)
        for kind, (offset, size), extra in operations:
            if kind == "fill":
                queue.fill(first.view(offset, size), extra)
                models[0][offset : offset + size] = extra * (size // len(extra))
            elif kind == "update":
                data = bytes([extra]) * size
                queue.update(first, data, offset)
                models[0][offset : offset + size] = data
            else:
                target = min(extra, SIZE - size)
                queue.copy(first.view(offset, size), second.view(target, size))
                models[1][target : target + size] = models[0][offset : offset + size]
        assert first.read(timeout=10) == models[0]
        assert second.read(timeout=10) == models[1]


@pytest.mark.parametrize("size", [0, 4, HOLD_GIL_BYTES, HOLD_GIL_BYTES + 4, FILL_BLOCK, 3 * FILL_BLOCK + 8, 9 << 20])
@pytest.mark.parametrize("pattern", [b"\x07", b"\x01\x02", b"\x01\x02\x03\x04"])
def test_fills_of_any_size(device, size, pattern):
    with device.upload(bytes(size + 8)) as buffer:
        device.queue.fill(buffer.view(4, size), pattern).wait(10)
        assert buffer.read() == bytes(4) + pattern * (size // len(pattern)) + bytes(4)


@pytest.mark.parametrize("size", [0, 1, HOLD_GIL_BYTES, HOLD_GIL_BYTES + 1, 9 << 20])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_uploads_of_any_size_from_read_only_and_writable_memory(device, size, kind):
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with device.upload(kind(data)) as buffer:
        assert buffer.read() == data
        into = bytearray(size)
        buffer.read_into(into)
        assert into == data


def test_h11_a_dispatch_waits_for_the_host_and_signals(device, plain, infos):
    kernels = device.load_artifact(device.targets[-1], plain, infos)
    a, b, out = (device.upload(bytes([value, 0, 0, 0]) * 3000) for value in (1, 2, 0))
    ready, finished = device.semaphore(), device.semaphore()
    done = device.queue.dispatch(
        kernels["add"], kernels["add"].grid_for(3000), [a, b, out], (3000,), wait=ready.at(5), signal=[finished.at(1)]
    )
    with pytest.raises(DeadlineError):
        finished.wait(1, timeout=0)
    ready.signal(4)
    assert not done.done
    ready.signal(9)
    finished.wait(1, timeout=10)
    done.wait(10)
    assert out.read().cast("I").tolist() == [3] * 3000


def test_h11_queues_wait_for_each_other(cpu, kernels):
    a, b, out = (cpu.upload(bytes([value, 0, 0, 0]) * 100) for value in (1, 2, 0))
    start = cpu.semaphore()
    point = start.at(1)
    for round_ in range(40):
        queue = cpu.queues[round_ % 4]
        point = queue.dispatch(kernels["add"], (1, 1, 1), [a, out, out] if round_ % 2 else [b, out, out], (100,), wait=point)
    start.signal(1)
    point.wait(20)
    assert out.read().cast("I").tolist() == [60] * 100


def test_h11_a_failed_kernel_fails_its_queue_for_good_and_no_other(cpu, kernels):
    calls = cpu.upload(bytes(4))
    failing = cpu.queues[1]
    signalled = cpu.semaphore()
    done = failing.dispatch(kernels["fail"], (1, 1, 1), [calls], (0, 7), signal=signalled.at(1))
    for _ in range(2):
        with pytest.raises(DeviceError, match="kernel fail failed: a workgroup returned 7") as caught:
            done.wait(10)
        assert "cpu://?threads=2 queue 1, operation 1" in caught.value.origin
    with pytest.raises(DeviceError, match="returned 7"):
        signalled.wait(1, timeout=10)
    with pytest.raises(DeviceError, match="returned 7"):
        failing.barrier().wait(10)
    dependent = cpu.queues[2].barrier(wait=done)
    with pytest.raises(DeviceError, match="returned 7"):
        dependent.wait(10)
    cpu.queues[3].dispatch(kernels["empty"], (1, 1, 1), []).wait(10)
    assert calls.read().cast("I")[0] == 1


def test_h27_each_operation_ends_exactly_once(cpu, kernels):
    """Half of the operations run, one fails, the rest fail with it: every callback comes once."""
    endings, total = [], 60
    ended = threading.Semaphore(0)
    go = cpu.semaphore()
    queue = cpu.queues[1]
    calls = cpu.upload(bytes(4))

    def note(index):
        endings.append(index)
        ended.release()

    points = [queue.barrier(wait=go.at(1))]
    for index in range(1, total):
        code = 7 if index == total // 2 else 0
        points.append(queue.dispatch(kernels["fail"], (1, 1, 1), [calls], (0, code)))
    for index, point in enumerate(points):
        point.on_done(lambda index=index: note(index))
    go.signal(1)
    for _ in points:
        assert ended.acquire(timeout=10)
    assert sorted(endings) == list(range(total))
    assert not ended.acquire(blocking=False)
    assert calls.read().cast("I")[0] == total // 2


def test_a_dispatch_counts(cpu, kernels):
    for _ in range(3):
        cpu.queues[2].dispatch(kernels["empty"], (4, 1, 1), [])
    cpu.queues[2].wait_idle(10)
    assert cpu.statistics().dispatches == 3


def test_an_empty_grid_runs_nothing(cpu, kernels):
    calls = cpu.upload(bytes(4))
    cpu.queue.dispatch(kernels["fail"], (0, 3, 1), [calls], (0, 7)).wait(10)
    assert bytes(calls.read(timeout=10)) == bytes(4)


def test_a_buffer_of_another_device_is_refused(cpu, device, kernels):
    foreign = device.allocate(4096)
    with pytest.raises(UsageError, match="another device"):
        cpu.queue.fill(foreign)


def test_closed_buffers_are_refused(cpu, kernels):
    buffer = cpu.allocate(4096)
    buffer.close()
    for call in (
        lambda: cpu.queue.fill(buffer),
        lambda: cpu.queue.dispatch(kernels["mark"], (1, 1, 1), [buffer]),
        lambda: buffer.read(timeout=5),
        lambda: buffer.map(timeout=5),
    ):
        with pytest.raises(ClosedError):
            call()


def test_mappings_wait_for_the_queue_and_are_the_memory(cpu, kernels):
    a, b, out = (cpu.upload(bytes([value, 0, 0, 0]) * 100) for value in (1, 2, 0))
    with b.map() as mapping:
        mapping.view[0] = 9
    cpu.queue.dispatch(kernels["add"], (1, 1, 1), [a, b, out], (100,))
    with out.map(timeout=10) as mapping:
        assert mapping.view.cast("I").tolist() == [10] + [3] * 99


def test_many_threads_may_submit_to_one_queue(cpu, kernels):
    cells = cpu.upload(bytes(4 * 16))

    def submit():
        for _ in range(200):
            cpu.queue.dispatch(kernels["mark"], (16, 1, 1), [cells])

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert cells.read(timeout=10).cast("I").tolist() == [800] * 16


@pytest.mark.parametrize("uri", ["cpu://?threads=2", "null"])
@pytest.mark.parametrize("inline", [True, False])
def test_h27_a_callback_may_close_the_device(uri, inline):
    (opened,) = open_devices(uri)
    closed = threading.Event()

    def close():
        opened.close()
        closed.set()

    opened.queue.timeline.on(1, close)
    go = opened.semaphore(1 if inline else 0)
    done = opened.queue.barrier(wait=go.at(1))
    if not inline:
        go.signal(1)
    assert closed.wait(10)
    done.wait(10)
    with pytest.raises(ClosedError):
        opened.queue.barrier()


@pytest.mark.parametrize("inline", [True, False])
def test_h27_a_callback_may_submit(cpu, inline):
    go = cpu.semaphore(1 if inline else 0)
    buffer = cpu.upload(bytes(4))
    filled = cpu.semaphore()
    cpu.queues[1].timeline.on(1, lambda: cpu.queues[1].fill(buffer, b"x", signal=filled.at(1)))
    cpu.queues[1].barrier(wait=go.at(1))
    if not inline:
        go.signal(1)
    filled.wait(1, timeout=10)
    assert buffer.read() == b"xxxx"
