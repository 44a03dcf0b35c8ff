"""G01, G02: limits, engines, zeroed memory where it was said, views that stay inside, budgets charged first and freed last."""

import gc

import pytest

import remora
from remora.errors import BusyError, ClosedError, OutOfMemoryError, UnsupportedError, UsageError
from remora.graph import DEVICE, HOST_VISIBLE, MemoryBudget, Runtime, RuntimeOptions, local_to, shared_with

SOON = 20.0


def contents(runtime, buffer):
    """The bytes of any buffer, through a graph where the host cannot map it."""
    into = bytearray(buffer.size)
    graph = runtime.graph()
    graph.download(buffer, into)
    graph.prepare().submit().wait(SOON)
    return bytes(into)


@pytest.mark.parametrize("options", [{"max_submissions": 0}, {"graph_slots": 0}, {"max_submissions": -1}])
def test_g01_zero_capacities_are_refused(options):
    with pytest.raises(UsageError, match="at least 1"):
        RuntimeOptions(**options)


def test_g01_devices_are_opened_when_they_are_needed(monkeypatch):
    opened = []
    monkeypatch.setattr("remora.graph.runtime.open_device", lambda uri: opened.append(uri) or remora.open(uri))
    with Runtime("cpu", "cpu") as runtime:
        assert opened == []
        runtime.allocate(16)
        assert opened == ["cpu"]
        runtime.allocate(16, local_to(1))
        runtime.device(1)
        assert opened == ["cpu", "cpu"]
        first = runtime.device(0)
    assert first.closed


def test_g01_a_device_that_was_given_stays_open(device):
    with Runtime(device) as runtime:
        assert runtime.device() is device
    assert not device.closed
    with pytest.raises(ClosedError, match="make a new one"):
        runtime.allocate(16)


def test_g01_two_runtimes_are_two_domains(device):
    with Runtime(device) as one, Runtime(device) as other:
        buffer = one.allocate(16)
        assert one.owns(buffer.view(4))
        assert not other.owns(buffer)
        assert one.same_domain(one)
        assert not one.same_domain(other)
        with pytest.raises(UsageError, match="another runtime"):
            other.graph().fill(buffer)


def test_g01_there_is_no_runtime_over_nothing():
    with pytest.raises(UsageError, match="at least one device"):
        Runtime()
    with Runtime("cpu") as runtime, pytest.raises(UsageError, match="no engine 1"):
        runtime.device(1)


@pytest.mark.parametrize("placement", [DEVICE, HOST_VISIBLE, local_to(1), shared_with(1)], ids=str)
def test_g02_memory_is_zero_wherever_it_is(placement):
    with Runtime("cpu", "cpu") as runtime:
        for engine in placement.engines:
            with runtime.device(engine).upload(b"\xff" * 4096):
                pass  # what comes next may get this memory
        buffer = runtime.allocate(4096, placement)
        if placement.mappable:
            with buffer.read(SOON) as guard:
                assert bytes(guard.view) == bytes(4096)
        else:
            assert contents(runtime, buffer) == bytes(4096)


@pytest.mark.parametrize("size", [0, -1])
def test_g02_nothing_is_no_allocation(runtime, size):
    with pytest.raises(UsageError, match="at least one byte"):
        runtime.allocate(size)


@pytest.mark.parametrize("placement", [local_to(1), shared_with(1), local_to(7), shared_with(0)], ids=str)
def test_g02_a_placement_names_an_engine_that_is_there(runtime, placement):
    with pytest.raises(UnsupportedError, match="no further engine"):
        runtime.allocate(16, placement)


def test_g02_views_stay_inside_and_count_from_their_parent(runtime):
    buffer = runtime.allocate(100)
    view = buffer.view(10, 50).view(5, 20)
    assert (view.offset, view.size) == (15, 20)
    assert buffer.view(99).size == 1
    for offset, size in [(101, 0), (-1, 2), (0, 101), (2**63, 2), (2**64 - 1, 2)]:
        with pytest.raises(UsageError, match="not inside"):
            buffer.view(offset, size)
    with pytest.raises(UsageError, match="not inside"):
        view.view(15, 6)


def test_r28_a_view_of_a_view_cannot_wrap_around(runtime):
    with pytest.raises(UsageError, match="not inside"):
        runtime.allocate(16).view(8, 8).view(2**64 - 1, 2)


def test_g02_the_budget_is_charged_before_and_given_back_after(device):
    budget = MemoryBudget(1000)
    with Runtime(device, options=RuntimeOptions(memory_budget=budget)) as runtime:
        first = runtime.allocate(600)
        assert budget.reserved_bytes == 600
        before = device.statistics().bytes_allocated
        with pytest.raises(BusyError, match="do not fit"):
            runtime.allocate(600)
        with pytest.raises(UsageError, match="never"):
            runtime.allocate(1001)
        assert device.statistics().bytes_allocated == before
        first.close()
        first.close()
        assert budget.reserved_bytes == 0
        runtime.allocate(1000)
        gc.collect()
        assert budget.reserved_bytes == 0
        assert runtime.statistics().live_bytes == 0


def test_g02_a_failed_allocation_gives_its_charge_back(device):
    budget = MemoryBudget(1 << 62)
    with Runtime(device, options=RuntimeOptions(memory_budget=budget)) as runtime:
        with pytest.raises(OutOfMemoryError):
            runtime.allocate(1 << 60)
        assert budget.reserved_bytes == 0
        assert runtime.statistics().allocations == 0


def test_g02_memory_stays_while_a_view_or_a_graph_has_it(runtime):
    buffer = runtime.allocate(64, HOST_VISIBLE)
    view = buffer.view(8, 8)
    del buffer
    gc.collect()
    assert runtime.statistics().live_bytes == 64
    graph = runtime.graph()
    graph.fill(view, b"\7")
    replay = graph.prepare()
    del view, graph
    gc.collect()
    assert runtime.statistics().live_bytes == 64
    replay.submit().wait(SOON)
    del replay
    gc.collect()
    assert runtime.statistics().live_bytes == 0


def test_g02_a_closed_buffer_is_refused(runtime):
    buffer = runtime.allocate(64, HOST_VISIBLE)
    graph = runtime.graph()
    graph.fill(buffer)
    replay = graph.prepare()
    buffer.close()
    with pytest.raises(ClosedError, match="allocate a new one"):
        replay.submit()
    with pytest.raises(ClosedError, match="allocate a new one"):
        buffer.read()


def test_g10_an_adopted_buffer_keeps_its_contents_and_its_owner(device):
    budget = MemoryBudget(100)
    with device.upload(b"adopted!") as memory, Runtime(device, options=RuntimeOptions(memory_budget=budget)) as runtime:
        adopted = runtime.adopt(memory, HOST_VISIBLE)
        assert budget.reserved_bytes == 8
        with adopted.read(SOON) as guard:
            assert bytes(guard.view) == b"adopted!"
        adopted.close()
        assert budget.reserved_bytes == 0
        assert bytes(memory.read()) == b"adopted!"
        budget.cover(memory)
        runtime.adopt(memory).close()
        with pytest.raises(UnsupportedError, match="two engines"):
            runtime.adopt(memory, shared_with(1))


def test_g10_a_buffer_of_another_device_is_not_adopted(runtime):
    with remora.open("cpu") as other, other.upload(b"1234") as memory, pytest.raises(UsageError, match="not of engine 0"):
        runtime.adopt(memory)


def test_r10_many_live_allocations(runtime):
    buffers = [runtime.allocate(64, HOST_VISIBLE) for _ in range(512)]
    graph = runtime.graph()
    for index, buffer in enumerate(buffers):
        graph.fill(buffer, bytes([index % 251]))
    graph.prepare().submit().wait(SOON)
    for index, buffer in enumerate(buffers):
        with buffer.read(SOON) as guard:
            assert bytes(guard.view) == bytes([index % 251]) * 64


def test_r22_opening_that_failed_is_tried_again(monkeypatch):
    tries = []

    def open_device(uri):
        tries.append(uri)
        if len(tries) == 1:
            raise remora.BrokenError("not yet")
        return remora.open("cpu")

    monkeypatch.setattr("remora.graph.runtime.open_device", open_device)
    with Runtime("cpu") as runtime:
        with pytest.raises(remora.BrokenError, match="not yet"):
            runtime.allocate(4)
        assert runtime.allocate(4).size == 4
