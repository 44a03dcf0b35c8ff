"""HAL conformance: profiles (H24). What queues ran is told to a sink, in order, and nothing waits for the sink but `flush`."""

from __future__ import annotations

import threading
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from remora.errors import DeadlineError, DeviceError, Error, Status, UnsupportedError, UsageError
from remora.hal.operation import OperationKind, OperationRecord
from remora.testing.cts.hal_factory import LONG, SHORT, background, hold, second_queue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from remora.hal.device import Device
    from remora.hal.profile import Profile
    from remora.testing.cts.hal_factory import HalFactory

__all__ = ["TestProfiles", "TestSinks"]

LARGE = 1 << 20
K = OperationKind


class Recorded:
    """What both classes of tests take."""

    @pytest.fixture
    def records(self, device: Device) -> list[OperationRecord]:
        """What a sink took. Skips the test when the device's driver keeps no times."""
        try:
            device.profile(lambda _: None).end(LONG)
        except UnsupportedError as error:
            pytest.skip(str(error))
        return []


class Gate:
    """A sink that waits: it takes nothing until `open` is set. `began` tells that it was called."""

    def __init__(self, records: list[OperationRecord]) -> None:
        self.records = records
        self.began, self.open = threading.Event(), threading.Event()

    def take(self, records: Sequence[OperationRecord]) -> None:
        """See `Sink`."""
        self.began.set()
        assert self.open.wait(LONG)
        self.records += records


def failing(_: Sequence[OperationRecord]) -> None:
    raise ValueError("the disk is full")


class TestProfiles(Recorded):
    """H24: what records say."""

    def test_h24_each_operation_makes_one_record_in_order(self, device: Device, records: list[OperationRecord]) -> None:
        queue = device.queue
        with device.allocate(LARGE) as buffer, device.allocate(LARGE) as other, device.profile(records.extend) as profile:
            began = time.monotonic_ns()
            points = [
                queue.fill(buffer, b"a"),
                queue.update(buffer, b"small"),
                queue.update(buffer, bytes(LARGE)),
                queue.copy(buffer, other),
                queue.barrier(),
                queue.read(other, bytearray(7)),
                queue.read(other, bytearray(LARGE)),
            ]
            points[-1].wait(LONG)
            ended = time.monotonic_ns()
            profile.flush(LONG)
            error = profile.clock.error_ns
        assert [(record.kind, record.bytes) for record in records] == [
            *((K.FILL, LARGE), (K.UPDATE, 5), (K.UPDATE, LARGE), (K.COPY, LARGE)),
            *((K.BARRIER, 0), (K.READ, 7), (K.READ, LARGE)),
        ]
        assert [record.value for record in records] == [point.value for point in points]
        assert {(record.queue, record.failed, record.dispatches) for record in records} == {(0, False, 0)}
        for before, after in pairwise(records):
            assert before.end_ns <= after.start_ns
            assert before.submit_ns <= after.submit_ns
        for record in records:
            assert began <= record.submit_ns <= record.start_ns + error
            assert record.start_ns <= record.end_ns <= ended + error

    def test_h24_a_dispatch_says_its_kernel_and_grid(
        self, device: Device, factory: HalFactory, records: list[OperationRecord]
    ) -> None:
        kernel = device.load(factory.vector)["fill_index"]
        with device.allocate(4096) as buffer, device.profile(records.extend) as profile:
            point = device.queue.dispatch(kernel, kernel.grid_for(1024), [buffer], (1024, 0))
            point.wait(LONG)
            profile.flush(LONG)
        (record,) = records
        assert (record.kind, record.name, record.grid, record.dispatches) == (K.DISPATCH, "fill_index", kernel.grid_for(1024), 1)
        assert (record.title, record.value, record.failed) == ("fill_index", point.value, False)

    def test_h24_an_execution_is_one_record_with_its_label_and_dispatches(
        self, device: Device, factory: HalFactory, records: list[OperationRecord]
    ) -> None:
        kernel = device.load(factory.vector)["fill_index"]
        with device.allocate(4096) as buffer, device.profile(records.extend) as profile:
            with device.command_buffer(label="step") as commands:
                commands.push_label("outer")
                for _ in range(3):
                    commands.push_label("inner")
                    commands.dispatch(kernel, (1, 1, 1), [buffer], (4, 0))
                    commands.pop_label()
                commands.pop_label()
            points = [device.queue.execute(commands) for _ in range(2)]
            points[-1].wait(LONG)
            profile.flush(LONG)
        whole = [record for record in records if record.kind is not K.LABEL]
        assert [(record.kind, record.label, record.dispatches) for record in whole] == [(K.EXECUTE, "step", 3)] * 2
        assert [record.value for record in whole] == [point.value for point in points]
        for label in (record for record in records if record.kind is K.LABEL):
            (parent,) = (record for record in whole if record.value == label.value)
            assert parent.start_ns <= label.start_ns <= label.end_ns <= parent.end_ns
            assert (label.name, label.label) in {("inner", "outer/inner"), ("outer", "outer")}

    def test_h23_h24_files_are_moved_in_one_record(self, device: Device, records: list[OperationRecord], tmp_path: Path) -> None:
        path = tmp_path / "data"
        path.write_bytes(bytes(LARGE))
        with device.open_file(path, "r+") as file, device.allocate(LARGE) as buffer, device.profile(records.extend) as profile:
            points = [device.queue.read_file(file, 0, buffer), device.queue.write_file(buffer, file, 0)]
            points[-1].wait(LONG)
            profile.flush(LONG)
        assert [(record.kind, record.bytes) for record in records] == [(K.READ_FILE, LARGE), (K.WRITE_FILE, LARGE)]
        assert [record.value for record in records] == [point.value for point in points]

    def test_h17_h24_memory_that_comes_and_goes_in_order(self, device: Device, records: list[OperationRecord]) -> None:
        with device.profile(records.extend) as profile:
            buffer, made = device.queue.allocate(4096)
            points = [made, device.queue.fill(buffer, b"a"), device.queue.deallocate(buffer)]
            points[-1].wait(LONG)
            profile.flush(LONG)
        assert [(record.kind, record.bytes) for record in records] == [(K.ALLOCATE, 4096), (K.FILL, 4096), (K.DEALLOCATE, 4096)]
        assert [record.value for record in records] == [point.value for point in points]

    def test_h24_several_queues_are_told_apart(self, device: Device, records: list[OperationRecord]) -> None:
        other = second_queue(device)
        with device.allocate(64) as buffer, device.profile(records.extend) as profile:
            gate = hold(device.queue)
            held = device.queue.fill(buffer, b"a")
            free = [other.barrier() for _ in range(5)]
            free[-1].wait(LONG)
            gate.semaphore.signal(1)
            held.wait(LONG)
            profile.flush(LONG)
        assert [(record.kind, record.queue) for record in records] == [(K.BARRIER, 1)] * 5 + [(K.BARRIER, 0), (K.FILL, 0)]
        assert [record.value for record in records if record.queue == 1] == [point.value for point in free]

    def test_h24_a_failed_operation_says_so_and_what_never_ran_is_not_there(
        self, device: Device, factory: HalFactory, records: list[OperationRecord]
    ) -> None:
        kernel = device.load(factory.need_faults())["fail"]
        with device.profile(records.extend) as profile:
            gate = hold(device.queue)
            failed = device.queue.dispatch(kernel, (1, 1, 1), [], (7,))
            behind = device.queue.barrier()
            gate.semaphore.signal(1)
            for point in (failed, behind):
                with pytest.raises(DeviceError):
                    point.wait(LONG)
            profile.flush(LONG)
        assert [(record.kind, record.failed) for record in records] == [(K.BARRIER, False), (K.DISPATCH, True)]

    def test_h24_only_what_is_submitted_while_it_is_on_is_recorded(self, device: Device, records: list[OperationRecord]) -> None:
        kinds = [type(queue) for queue in device.queues]
        with device.allocate(64) as buffer:
            device.queue.fill(buffer, b"a").wait(LONG)
            with device.profile(records.extend):
                device.queue.fill(buffer, b"b").wait(LONG)
            device.queue.fill(buffer, b"c").wait(LONG)
            with device.profile(records.extend):
                device.queue.barrier().wait(LONG)
            device.queue.fill(buffer, b"d").wait(LONG)
        assert [record.kind for record in records] == [K.FILL, K.BARRIER]
        assert [type(queue) for queue in device.queues] == kinds

    def test_h24_h27_threads_submit_while_profiles_come_and_go(self, device: Device, records: list[OperationRecord]) -> None:
        stop = threading.Event()

        def submit(number: int) -> int:
            queue, count = device.queues[number % len(device.queues)], 0
            with device.allocate(64) as buffer:
                while not count or not stop.is_set():
                    queue.fill(buffer, bytes([number])).wait(LONG)
                    assert bytes(buffer.read(timeout=LONG)) == bytes([number]) * 64
                    count += 1
            return count

        workers = [background(partial(submit, number)) for number in range(3)]
        for _ in range(5):
            with device.profile(records.extend) as profile:
                device.queue.barrier().wait(LONG)
                profile.flush(LONG)
        stop.set()
        assert all(worker.result(LONG) for worker in workers)
        assert sum(record.kind is K.BARRIER for record in records) >= 5
        assert {record.kind for record in records} <= {K.BARRIER, K.FILL, K.READ, K.UPDATE, K.OTHER}


class TestSinks(Recorded):
    """H24: who takes the records, and what happens when it does not."""

    def test_h24_a_flush_waits_until_the_sink_took_everything(self, device: Device, records: list[OperationRecord]) -> None:
        sink = Gate(records)
        with device.profile(sink) as profile:
            points = [device.queue.barrier() for _ in range(20)]
            points[-1].wait(LONG)
            with pytest.raises(DeadlineError):
                profile.flush(SHORT)
            flushing = background(lambda: profile.flush(LONG))
            assert sink.began.wait(LONG)
            assert not flushing.done()
            assert records == []
            sink.open.set()
            flushing.result(LONG)
            assert [record.value for record in records] == [point.value for point in points]
            assert profile.taken == 20

    def test_h24_work_goes_on_while_the_sink_stands_still(self, device: Device, records: list[OperationRecord]) -> None:
        sink = Gate(records)
        with device.profile(sink), device.allocate(64) as buffer:
            for turn in range(500):
                device.queue.fill(buffer, bytes([turn % 256]))
            assert bytes(buffer.read(timeout=LONG)) == bytes([499 % 256]) * 64
            assert records == []
            sink.open.set()
        assert len(records) == 501

    def test_h24_a_failing_sink_ends_the_profile_and_nothing_else(self, device: Device, records: list[OperationRecord]) -> None:
        profile = device.profile(failing)
        device.queue.barrier().wait(LONG)
        for call in (profile.flush, profile.end, profile.flush):
            with pytest.raises(Error, match="the profile's sink raised ValueError: the disk is full") as caught:
                call(LONG)
            assert caught.value.code is Status.ABORTED
            assert isinstance(caught.value.__cause__, ValueError)
        assert profile.failure is not None
        with device.upload(b"works") as buffer:
            assert bytes(buffer.read(timeout=LONG)) == b"works"
        with device.profile(records.extend):
            device.queue.barrier().wait(LONG)
        assert [record.kind for record in records] == [K.BARRIER]

    def test_h24_a_with_block_raises_why_the_profile_ended(self, device: Device, records: list[OperationRecord]) -> None:
        def failing_block(profile: Profile, error: Exception | None) -> None:
            with profile:
                device.queue.barrier().wait(LONG)
                if error is not None:
                    raise error

        with pytest.raises(Error, match="the disk is full"):
            failing_block(device.profile(failing), None)
        with pytest.raises(KeyError):
            failing_block(device.profile(failing), KeyError("the program's own"))

    def test_h24_a_device_has_one_profile_at_a_time(self, device: Device, records: list[OperationRecord]) -> None:
        profile = device.profile(records.extend)
        with pytest.raises(UsageError, match="is profiled already"):
            device.profile(records.extend)
        profile.end(LONG)
        profile.end(LONG)
        profile.flush(LONG)
        with device.profile(records.extend):
            pass
        assert records == []

    def test_h24_a_sink_is_a_callable_or_takes(self, device: Device, records: list[OperationRecord]) -> None:
        with pytest.raises(UsageError, match="a sink is a callable"):
            device.profile(records)  # type: ignore[arg-type]
        with device.profile(records.extend):
            pass

    def test_h24_a_sink_cannot_wait_for_itself(self, device: Device, records: list[OperationRecord]) -> None:
        caught: list[Error] = []
        ready = threading.Event()

        def take(_: Sequence[OperationRecord]) -> None:
            assert ready.wait(LONG)
            try:
                profile.flush(LONG)
            except UsageError as error:
                caught.append(error)

        profile = device.profile(take)
        ready.set()
        device.queue.barrier().wait(LONG)
        profile.end(LONG)
        assert "cannot flush or end" in str(caught[0])

    def test_h24_closing_the_device_ends_the_profile_with_all_that_was_done(
        self, factory: HalFactory, records: list[OperationRecord]
    ) -> None:
        with factory.open() as device:
            profile = device.profile(records.extend)
            device.queue.barrier().wait(LONG)
        assert [record.kind for record in records] == [K.BARRIER]
        profile.flush(LONG)
        profile.end(LONG)
        assert profile.failure is None
