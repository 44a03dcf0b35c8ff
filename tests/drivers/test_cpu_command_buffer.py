"""Recordings on the cpu driver: one native call for a run of records, shared streams, costs, lifetimes (H18, D01)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from remora.drivers.cpu.command_buffer import Stream
from remora.errors import ClosedError, DeviceError, UsageError
from remora.hal.host_queue import INLINE_NS
from remora.hal.records import Patch, Slot

LONG = 20.0
GRID = (7, 5, 3)
CELLS = 7 * 5 * 3


@pytest.fixture
def plays(cpu, monkeypatch):
    """The thread and size of each native call that plays a stream."""
    calls = []
    play = cpu.pool.play

    def counting(address, size, failed):
        calls.append((threading.current_thread(), size))
        return play(address, size, failed)

    monkeypatch.setattr(cpu.pool, "play", counting)
    return calls


@pytest.fixture
def known(kernels):
    """The kernels, each at a known cost of 10 ns a workgroup."""
    for kernel in kernels.values():
        kernel.program.record.ns_per_workgroup = 10.0
    return kernels


def words(buffer):
    return buffer.read(timeout=LONG).cast("I").tolist()


def test_h18_all_records_between_two_events_run_in_one_native_call(cpu, known, plays):
    event = cpu.event()
    with cpu.upload(bytes(4 * CELLS)) as cells, cpu.allocate(4 * CELLS) as copy:
        with cpu.command_buffer(slots=1) as commands:
            for _ in range(50):
                commands.push_label("step")
                commands.dispatch(known["mark"], GRID, [Slot(0)])
                commands.copy(Slot(0), copy, 4 * CELLS)
                commands.pop_label()
            commands.signal_event(event)
            commands.fill(copy.view(0, 4), b"\xff")
            commands.update(copy.view(4), b"\1\0\0\0")
        cpu.queue.execute(commands, [cells]).wait(LONG)
        assert len(plays) == 2
        assert event.query()
        assert words(cells) == [50] * CELLS
        assert words(copy) == [0xFFFFFFFF, 1, *[50] * (CELLS - 2)]
        assert cpu.statistics().dispatches == 50


def test_h18_a_dispatch_whose_grid_is_in_a_buffer_ends_a_native_call_and_nothing_else_does(cpu, known, plays):
    with cpu.upload(b"\7\0\0\0\5\0\0\0\3\0\0\0") as grid, cpu.upload(bytes(4 * CELLS)) as cells:
        with cpu.command_buffer(slots=1) as commands:
            for _ in range(2):
                for _ in range(10):
                    commands.dispatch(known["mark"], GRID, [Slot(0)])
                number = commands.dispatch_indirect(known["mark"], grid, [Slot(0)])
        cpu.queue.execute(commands, [cells]).wait(LONG)
        assert len(plays) == 2
        assert words(cells) == [22] * CELLS
        assert cpu.statistics().dispatches == 22
        with cpu.upload(bytes(4 * CELLS)) as other:
            cpu.queue.execute(commands, [cells], {number: Patch(bindings={0: other})}).wait(LONG)
            assert words(other) == [1] * CELLS
        assert words(cells) == [43] * CELLS


def test_d01_what_a_grid_in_a_buffer_costs_is_unknown(cpu, known, plays):
    """So the recording never runs on the thread that submits it."""
    with cpu.upload(bytes(12)) as grid, cpu.command_buffer() as commands:
        commands.dispatch(known["empty"], (1, 1, 1), [])
        commands.dispatch_indirect(known["empty"], grid, [])
        commands.seal()
        cpu.queue.execute(commands).wait(LONG)
    assert plays[0][0] is not threading.current_thread()


def test_h26_a_failed_indirect_dispatch_is_named(cpu, known):
    with cpu.upload(b"\1\0\0\0" * 3) as grid, cpu.upload(bytes(4)) as calls:
        with cpu.command_buffer() as commands:
            commands.dispatch(known["empty"], (1, 1, 1), [])
            commands.push_label("train")
            number = commands.dispatch_indirect(known["fail"], grid, [calls], (0, -77))
            commands.pop_label()
        with pytest.raises(DeviceError, match=rf"record {number} \(train\): kernel fail failed: a workgroup returned -77"):
            cpu.queue.execute(commands).wait(LONG)


def test_h25_more_workgroups_in_a_buffer_than_the_pool_counts(cpu, known):
    with cpu.upload(b"\xff" * 8 + b"\1\0\0\0") as grid, cpu.command_buffer() as commands:
        commands.dispatch_indirect(known["empty"], grid, [])
        commands.seal()
        with pytest.raises(UsageError, match=r"record 0: .*2\*\*62"):
            cpu.queue.execute(commands).wait(LONG)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_d01_workgroups_of_each_recorded_dispatch_run_once_and_dispatches_after_each_other(threads, plain, infos):
    from remora.hal.registry import open_devices

    (device,) = open_devices(f"cpu://?threads={threads}")
    with device:
        mark = device.load_artifact(device.targets[-1], plain, infos)["mark"]
        mark.program.record.ns_per_workgroup = 5_000.0  # long enough to be shared among the workers
        with device.command_buffer(slots=1) as commands:
            for _ in range(200):
                commands.dispatch(mark, GRID, [Slot(0)])
        with device.upload(bytes(4 * CELLS)) as cells:
            device.queue.execute(commands, [cells]).wait(LONG)
            assert words(cells) == [200] * CELLS


def test_h18_a_recording_without_slots_is_played_where_it_is(cpu, known, plays):
    with cpu.upload(bytes(4 * CELLS)) as cells:
        with cpu.command_buffer() as commands:
            commands.dispatch(known["mark"], GRID, [cells])
        (stream,) = commands.prepared.parts
        run = stream.bind(None, b"", ())
        assert run.memory is stream._shared
        assert isinstance(stream, Stream)


def test_h18_a_patched_execution_leaves_the_shared_stream_alone(cpu, known):
    with cpu.upload(bytes(4 * CELLS)) as cells, cpu.upload(bytes(4 * CELLS)) as other:
        with cpu.command_buffer() as commands:
            number = commands.dispatch(known["mark"], GRID, [cells])
        before = bytes(commands.prepared.parts[0].packed)
        cpu.queue.execute(commands, patches={number: Patch(bindings={0: other}, grid=(3, 1, 1))}).wait(LONG)
        assert bytes(commands.prepared.parts[0].packed) == before
        cpu.queue.execute(commands).wait(LONG)
        assert words(cells) == [1] * CELLS
        assert words(other) == [1, 1, 1] + [0] * (CELLS - 3)


def test_h18_many_threads_execute_one_recording_with_tables_of_their_own(cpu, known):
    with cpu.command_buffer(slots=2) as commands:
        for _ in range(20):
            commands.dispatch(known["mark"], GRID, [Slot(0)])
        commands.copy(Slot(0), Slot(1), 4 * CELLS)

    def execute(index):
        with cpu.upload(bytes(4 * CELLS)) as cells, cpu.upload(bytes(4 * CELLS)) as copy:
            for _ in range(10):
                done = cpu.queues[index % 4].execute(commands, [cells, copy])
            done.wait(LONG)
            return words(cells) == words(copy) == [200] * CELLS

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(execute, range(12)))


def test_d01_the_sum_of_known_costs_decides_where_it_runs(cpu, known, plays):
    record = known["empty"].program.record
    with cpu.command_buffer() as commands:
        number = commands.dispatch(known["empty"], (10, 1, 1), [])
        commands.dispatch(known["empty"], (20, 1, 1), [])
    for ns_each, patches, inline in (
        (INLINE_NS / 40, {}, True),
        (INLINE_NS / 25, {}, False),
        (INLINE_NS / 40, {number: Patch(grid=(30, 1, 1))}, False),
        (INLINE_NS / 25, {number: Patch(grid=(1, 1, 1))}, True),
        (-1.0, {}, False),
    ):
        cpu.queue.wait_idle(LONG)
        record.ns_per_workgroup = ns_each
        cpu.queue.execute(commands, patches=patches).wait(LONG)
        assert (plays[-1][0] is threading.current_thread()) is inline


def test_d01_bytes_count_too(cpu, plays):
    large = int(INLINE_NS)
    with cpu.allocate(large * 10) as buffer, cpu.allocate(64) as small:
        with cpu.command_buffer(slots=1) as commands:
            commands.fill(Slot(0), b"x")
        for entry, inline in ((small, True), (buffer, False), (buffer.view(0, 64), True)):
            cpu.queue.wait_idle(LONG)
            cpu.queue.execute(commands, [entry]).wait(LONG)
            assert (plays[-1][0] is threading.current_thread()) is inline


def test_h26_a_failed_dispatch_is_named_and_counted_and_nothing_behind_it_runs(cpu, known):
    with cpu.upload(bytes(4 * CELLS)) as cells, cpu.upload(bytes(4)) as calls:
        with cpu.command_buffer() as commands:
            commands.push_label("train")
            commands.dispatch(known["mark"], GRID, [cells])
            commands.dispatch(known["fail"], (1, 1, 1), [calls], (0, 0))
            number = commands.dispatch(known["fail"], (1, 1, 1), [calls], (0, -77))
            commands.dispatch(known["mark"], GRID, [cells])
            commands.pop_label()
        with pytest.raises(DeviceError, match=rf"record {number} \(train\): kernel fail failed: a workgroup returned -77"):
            cpu.queue.execute(commands).wait(LONG)
        into = [bytearray(4 * CELLS), bytearray(4)]
        cpu.queues[1].read(cells, into[0]).wait(LONG)
        cpu.queues[1].read(calls, into[1]).wait(LONG)
        assert memoryview(into[0]).cast("I").tolist() == [1] * CELLS
        assert into[1] == b"\2\0\0\0"
        assert cpu.statistics().dispatches == 3


def test_d01_the_kernel_is_told_the_same_as_by_a_dispatch(cpu, known):
    with cpu.upload(bytes(64)) as plain, cpu.upload(bytes(128)) as recorded:
        cpu.queue.dispatch(known["report"], (3, 2, 1), [plain])
        with cpu.command_buffer(slots=1) as commands:
            commands.dispatch(known["report"], (3, 2, 1), [Slot(0, 64)])
        cpu.queue.execute(commands, [recorded])
        assert bytes(recorded.read(64, timeout=LONG)) == bytes(plain.read(timeout=LONG))


def test_d01_local_memory_is_there(cpu, known):
    with cpu.upload(bytes(16)) as out:
        with cpu.command_buffer() as commands:
            commands.dispatch(known["scratch"], (4, 1, 1), [out])
        cpu.queue.execute(commands)
        assert words(out) == [index * 2048 for index in range(4)]


def test_h25_more_workgroups_than_the_pool_counts(cpu, known):
    most = (1 << 32) - 1
    commands = cpu.command_buffer()
    commands.dispatch(known["empty"], (most, most, 1), [])
    with pytest.raises(UsageError, match=r"record 0.*2\*\*62"):
        commands.seal()
    with cpu.command_buffer() as small:
        number = small.dispatch(known["empty"], (1, 1, 1), [])
    with pytest.raises(UsageError, match=r"record 0.*2\*\*62"):
        cpu.queue.execute(small, patches={number: Patch(grid=(most, most, 1))})


def test_h25_an_executable_closed_before_the_seal(cpu, kernels):
    commands = cpu.command_buffer()
    commands.dispatch(kernels["empty"], (1, 1, 1), [])
    indirect = cpu.command_buffer()
    with cpu.allocate(12) as grid:
        indirect.dispatch_indirect(kernels["empty"], grid, [])
        kernels.close()
        for recording in (commands, indirect):
            with pytest.raises(ClosedError, match="record 0"):
                recording.seal()


@pytest.mark.parametrize("close_first", [False, True])
def test_h18_memory_of_an_execution_in_flight_is_not_handed_out(cpu, known, close_first):
    size, marker = 1024, b"\x01" * 1024
    recorded, entry, patched = (cpu.allocate(size) for _ in range(3))
    commands = cpu.command_buffer(slots=1)
    commands.fill(recorded, b"x")
    commands.update(recorded.view(8), b"y" * 100)
    commands.fill(Slot(0), b"x")
    number = commands.dispatch(known["mark"], GRID, [recorded])
    commands.seal()
    gate = cpu.semaphore()
    late = cpu.queues[1].execute(commands, [entry], {number: Patch(bindings={0: patched})}, wait=gate.at(1))
    for thing in (commands, recorded, entry, patched) if close_first else (recorded, entry, patched, commands):
        thing.close()
    others = [cpu.upload(marker) for _ in range(50)]
    gate.signal(1)
    late.wait(LONG)
    assert [bytes(other.read(timeout=LONG)) == marker for other in others] == [True] * 50


def test_h18_memory_that_a_recording_names_is_not_handed_out(cpu):
    marker = b"\x01" * 1024
    with cpu.command_buffer() as commands:
        commands.fill(cpu.allocate(1024), b"x")
    others = [cpu.upload(marker) for _ in range(50)]
    cpu.queue.execute(commands).wait(LONG)
    assert [bytes(other.read(timeout=LONG)) == marker for other in others] == [True] * 50


def test_h27_a_closed_recording_gives_its_memory_back(cpu, known):
    before = cpu.memory.statistics()[1]
    commands = cpu.command_buffer(slots=1)
    with cpu.allocate(1 << 20) as recorded, cpu.allocate(1 << 20) as entry:
        commands.copy(recorded, Slot(0))
        commands.update(recorded, bytes(60_000))
        cpu.queue.execute(commands.seal(), [entry]).wait(LONG)
    commands.close()
    assert cpu.memory.statistics()[1] == before
    known_bytes = cpu.allocate(1 << 20)
    assert cpu.memory.statistics()[1] - before == 1 << 20
    known_bytes.close()


def test_h27_a_recording_may_outlive_its_device(cpu, known):
    with cpu.allocate(64) as buffer:
        commands = cpu.command_buffer()
        commands.fill(buffer)
        commands.dispatch(known["empty"], (1, 1, 1), [])
        commands.seal()
    cpu.close()
    with pytest.raises(ClosedError):
        cpu.queue.execute(commands)
    commands.close()
