"""G02, G06: several engines in one graph: lanes and memory of their own, shared memory that is staged when it has to be."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import samples
from remora.errors import DeviceError, UnsupportedError, UsageError
from remora.graph import HOST_VISIBLE, Runtime, local_to, shared_with
from remora.hal.buffer import Access

SOON = 30.0
N = 256


def words(*values):
    return b"".join(value.to_bytes(4, "little") for value in values)


PAIRS = [
    ("cpu", "cpu"),
    pytest.param(("cpu", "opencl"), marks=pytest.mark.opencl),
    pytest.param(("opencl", "cpu"), marks=pytest.mark.opencl),
    pytest.param(("cpu", "vulkan"), marks=pytest.mark.vulkan),
    pytest.param(("vulkan", "cpu"), marks=pytest.mark.vulkan),
]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request):
    with Runtime(*request.param) as made:
        try:
            for engine in (0, 1):
                made.device(engine)
        except UnsupportedError as error:
            pytest.skip(str(error))
        yield made


@pytest.fixture
def add(pair):
    """The kernel add_i32 on each engine."""
    return [pair.device(engine).load(samples.load("vector"))["add_i32"] for engine in (0, 1)]


def test_g06_kernels_of_two_engines_in_one_graph(pair, add):
    a, b, out = (pair.allocate(4 * N, shared_with(1)) for _ in range(3))
    with a.write(SOON) as guard:
        guard.view[:] = words(*range(N))
    with b.write(SOON) as guard:
        guard.view[:] = words(*[5] * N)
    graph = pair.graph()
    graph.kernel(add[0], [a, b, out], (N,))
    graph.kernel(add[1], [out, b, a], (N,))
    graph.kernel(add[0], [a, b, out], (N,))
    replay = graph.prepare()
    assert replay.regions == ("compute: add_i32", "engine 1: add_i32", "compute: add_i32")
    for round_ in range(1, 4):
        replay.submit().wait(SOON)
        with out.read(SOON) as guard:
            assert bytes(guard.view) == words(*(value + 15 + 10 * (round_ - 1) for value in range(N)))
    told = pair.statistics()
    assert told.imports == 3
    assert told.staged_bytes > 0
    assert told.staged_bytes % (4 * N) == 0


def test_g02_staging_happens_only_when_bytes_are_old(pair):
    shared = pair.allocate(64, shared_with(1))
    other = pair.allocate(64, local_to(1))
    graph = pair.graph()
    graph.copy(shared, other)  # on engine 1, which reads
    there = graph.prepare()
    there.submit().wait(SOON)
    assert pair.statistics().staged_bytes == 0  # both replicas began as zeros
    graph = pair.graph()
    graph.fill(shared, b"\1")  # on engine 0
    here = graph.prepare()
    here.submit().wait(SOON)
    for _ in range(3):
        there.submit().wait(SOON)
    assert pair.statistics().staged_bytes == 64
    with other.read(SOON) as guard:
        assert bytes(guard.view) == b"\1" * 64


def test_g02_memory_of_one_engine_is_refused_by_the_other(pair, add):
    near, far = pair.allocate(4 * N), pair.allocate(4 * N, local_to(1))
    graph = pair.graph()
    with pytest.raises(UnsupportedError, match="shared_with"):
        graph.kernel(add[0], [near, far, near], (N,), aliasing=True)
    with pytest.raises(UnsupportedError, match="shared_with"):
        graph.kernel(add[1], [near, far, far], (N,), aliasing=True)


def test_g06_a_copy_between_engines_goes_through_the_host(pair):
    near, far = pair.allocate(64, HOST_VISIBLE), pair.allocate(64, local_to(1))
    with near.write(SOON) as guard:
        guard.view[:] = bytes(range(64))
    graph = pair.graph()
    graph.copy(near, far)
    graph.copy(far.view(0, 32), near.view(32, 32))
    replay = graph.prepare()
    assert replay.regions == ("host: copy", "host: copy")
    replay.submit().wait(SOON)
    with near.read(SOON) as guard:
        assert bytes(guard.view) == bytes(range(32)) * 2


def test_g06_an_engine_goes_on_while_another_waits(pair):
    near, far = pair.allocate(64), pair.allocate(64, local_to(1))
    event = threading.Event()
    graph = pair.graph()
    graph.call(lambda memory: event.wait(SOON), [(near, Access.WRITE)])
    graph.fill(near)
    held = graph.prepare().submit()
    graph = pair.graph()
    graph.fill(far, b"\1")
    graph.prepare().submit().wait(SOON)
    assert not held.done
    event.set()
    held.wait(SOON)


def test_i09_what_a_cancelled_writer_was_to_bring_is_not_made_up(pair):
    shared, far, gate = pair.allocate(64, shared_with(1)), pair.allocate(64, local_to(1)), pair.allocate(64)
    event = threading.Event()
    graph = pair.graph()
    graph.call(lambda memory: event.wait(SOON), [(gate, Access.WRITE)])
    graph.copy(gate, shared)  # engine 0 writes it
    writer = graph.prepare().submit()
    graph = pair.graph()
    graph.copy(shared, far)
    reader = graph.prepare()
    behind = reader.submit()
    assert writer.cancel()
    event.set()
    behind.wait(SOON)  # the zeros that both engines have
    with far.read(SOON) as guard:
        assert bytes(guard.view) == bytes(64)
    with shared.read(SOON) as guard:
        assert bytes(guard.view) == bytes(64)


def test_i09_after_a_cancelled_writer_the_newest_bytes_are_found_again(pair):
    shared, gate, far = pair.allocate(64, shared_with(1)), pair.allocate(64), pair.allocate(64, local_to(1))
    graph = pair.graph()
    graph.fill(shared, b"\3")  # engine 0 has the newest
    graph.prepare().submit().wait(SOON)
    event = threading.Event()
    graph = pair.graph()
    graph.call(lambda memory: event.wait(SOON), [(gate, Access.WRITE)])
    graph.copy(gate, far)
    graph.copy(far, shared)  # engine 1 would write it
    writer = graph.prepare().submit()
    assert writer.cancel()
    event.set()
    with pytest.raises(DeviceError, match="cancelled"):
        writer.wait(SOON)
    graph = pair.graph()
    graph.copy(shared, far)  # engine 1 reads it
    reads = graph.prepare()
    for _ in range(2):
        reads.submit().wait(SOON)
    with far.read(SOON) as guard:
        assert bytes(guard.view) == b"\3" * 64


def test_i09_what_a_callback_wrote_is_the_newest(pair):
    shared, far = pair.allocate(64, shared_with(1)), pair.allocate(64, local_to(1))
    graph = pair.graph()
    graph.copy(far, shared)  # engine 1
    graph.call(lambda memory: memory.__setitem__(slice(None), b"\4" * 64), [(shared, Access.WRITE)])
    graph.copy(shared, far)  # engine 1 again
    graph.prepare().submit().wait(SOON)
    for buffer in (far, shared):
        with buffer.read(SOON) as guard:
            assert bytes(guard.view) == b"\4" * 64


def test_r26_a_slot_is_of_the_first_engine(pair):
    graph = pair.graph()
    slot = graph.slot(64)
    graph.fill(slot)
    replay = graph.prepare()
    with pytest.raises(UnsupportedError, match="engine 0 has no memory"):
        replay.submit({slot: pair.allocate(64, local_to(1))})
    replay.submit({slot: pair.allocate(64, shared_with(1))}).wait(SOON)


def test_g08_an_engine_that_fails_leaves_the_other_working(pair):
    faults = pair.device(1).load(samples.load("faults"))
    kernel = faults["fail"]
    far, near = pair.allocate(64, local_to(1)), pair.allocate(64)
    graph = pair.graph()
    graph.fill(far)
    graph.kernel(kernel, [far] * len(kernel.info.bindings), (7,) * len(kernel.info.constants), grid=(1, 1, 1), aliasing=True)
    with pytest.raises(DeviceError, match="lane engine 1"):
        graph.prepare().submit().wait(SOON)
    graph = pair.graph()
    graph.fill(near)
    graph.prepare().submit().wait(SOON)


steps = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=10)


@settings(max_examples=25)
@given(st.lists(steps, min_size=1, max_size=3), st.integers(0, 2**32))
def test_i09_shared_bytes_are_the_newest_wherever_they_are_used(graphs, seed):
    """Random copies and fills by both engines on shared memory, against what running them in order gives."""
    dice, size = random.Random(seed), 8
    with Runtime("cpu", "cpu") as runtime:
        shared = [runtime.allocate(size, shared_with(1)) for _ in range(3)]
        local = [runtime.allocate(size), runtime.allocate(size, local_to(1))]
        expected, kept, done = [bytearray(size) for _ in shared], [bytearray(size), bytearray(size)], []
        for drawn in graphs:
            graph = runtime.graph()
            for engine, first, second in drawn:
                half = dice.randrange(2) * 4
                if first == second:
                    value = bytes([dice.randrange(256)])
                    graph.fill(local[engine], value)
                    kept[engine][:] = value * size
                graph.copy(shared[second].view(half, 4), local[engine].view(half, 4))
                kept[engine][half : half + 4] = expected[second][half : half + 4]
                graph.copy(local[engine].view(0, 4), shared[first].view(half, 4))
                expected[first][half : half + 4] = kept[engine][:4]
            done.append(graph.prepare().submit())
        for each in done:
            each.wait(SOON)
        found = []
        for buffer in shared:
            with buffer.read(SOON) as guard:
                found.append(bytearray(guard.view))
    assert found == expected


def test_g01_a_graph_of_a_runtime_is_not_for_kernels_of_strangers(pair):
    import remora

    with remora.open("cpu") as stranger, pytest.raises(UsageError, match="none of this runtime's"):
        pair.graph().kernel(stranger.load(samples.load("vector"))["empty"], [])
