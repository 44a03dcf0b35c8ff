"""Buffers, mappings, queues and devices (H16, H20): what the shared part of every driver promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import ClosedError, DeadlineError, DeviceError, NotFoundError, OutOfMemoryError, Status, UsageError
from remora.hal.buffer import Access, check_range
from remora.hal.bundle import Bundle
from remora.hal.executable import BindingRule, ConstantRule, KernelInfo
from remora.hal.registry import DRIVERS, find_driver
from remora.hal.semaphore import Semaphore
from remora.hal.target import Target

LONG = 20.0
PYTHON = Target("python", "any")


@given(st.integers(-3, 20), st.none() | st.integers(-3, 20), st.integers(0, 16))
def test_h20_a_range_lies_inside_or_is_refused(offset, size, limit):
    wanted = limit - offset if size is None else size
    if offset >= 0 and wanted >= 0 and offset + wanted <= limit:
        assert check_range(offset, size, limit) == (offset, wanted)
    else:
        with pytest.raises(UsageError, match="not inside") as caught:
            check_range(offset, size, limit)
        assert caught.value.code is Status.OUT_OF_RANGE


def test_contents_go_in_and_come_out(device):
    with device.upload(np.arange(8, dtype="u1")) as buffer:
        assert bytes(buffer.read()) == bytes(range(8))
        buffer.write(b"xy", 3)
        into = bytearray(4)
        buffer.read_into(into, 2)
        assert into == b"\2xy\5"
        assert bytes(buffer.read(6, timeout=LONG)) == b"\6\7"
    assert buffer.closed
    assert buffer.released == 1


def test_an_empty_buffer_is_a_buffer(device):
    buffer = device.upload(b"")
    assert bytes(buffer.read()) == b""
    with buffer.map() as mapping:
        assert mapping.size == 0


def test_views_are_inside_views(device):
    buffer = device.upload(bytes(range(32)))
    view = buffer.view(8, 16).view(4)
    assert (view.buffer, view.offset, view.size) == (buffer, 12, 12)
    assert buffer.buffer is buffer
    with pytest.raises(UsageError, match="not inside 16 bytes"):
        buffer.view(8, 16).view(0, 17)
    assert repr(view) == "<BufferView 12 bytes at 12 of <ScratchBuffer 32 bytes>>"


def test_h20_a_mapping_shows_the_contents_and_publishes_what_was_written(device):
    buffer = device.upload(bytes(16))
    with buffer.map(Access.READ_WRITE, 4, 8) as mapping:
        mapping.view[0] = 7
        np.asarray(mapping.tensor("f4"))[1] = 1.0
        assert (mapping.offset, mapping.size) == (4, 8)
    assert bytes(buffer.read(4, 8)) == b"\7\0\0\0" + np.float32(1).tobytes()
    assert buffer.unmapped == [(4, 8, True)]
    mapping.close()
    assert buffer.unmapped == [(4, 8, True)]
    with pytest.raises(ClosedError, match="map the buffer again"):
        _ = mapping.view


def test_h20_a_read_mapping_is_read_only(device):
    with device.upload(b"abc").map(Access.READ) as mapping, pytest.raises(TypeError):
        mapping.view[0] = 1


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        ((Access.READ, 0, 8), (Access.READ, 4, 8), True),
        ((Access.READ, 0, 8), (Access.WRITE, 4, 8), False),
        ((Access.WRITE, 0, 8), (Access.READ, 7, 1), False),
        ((Access.READ_WRITE, 0, 8), (Access.WRITE | Access.DISCARD, 0, 8), False),
        ((Access.WRITE, 0, 8), (Access.WRITE, 8, 8), True),
        ((Access.WRITE, 8, 4), (Access.WRITE, 0, 8), True),
    ],
)
def test_h20_overlapping_mappings_are_refused_when_one_is_writable(device, first, second, allowed):
    buffer = device.upload(bytes(16))
    with buffer.map(*first):
        if allowed:
            buffer.map(*second).close()
        else:
            with pytest.raises(UsageError, match="overlap a live mapping"):
                buffer.map(*second)
    buffer.map(*second).close()
    buffer.close()


def test_h20_a_mapping_needs_an_access_and_an_open_buffer(device):
    buffer = device.upload(b"abc")
    with pytest.raises(UsageError, match=r"Access\.READ, Access\.WRITE or both"):
        buffer.map(Access.DISCARD)
    with buffer.map() as mapping:
        with pytest.raises(UsageError, match="close the mapping first"):
            buffer.close()
        assert not buffer.closed
        mapping.view[0] = 1
    buffer.close()
    buffer.close()
    assert buffer.released == 1
    for use in (buffer.map, buffer.read, lambda: buffer.write(b"x"), lambda: device.queue.fill(buffer)):
        with pytest.raises(ClosedError, match="allocate a new one"):
            use()
    assert "closed" in repr(buffer)


def test_a_wait_in_a_read_may_run_out(device):
    buffer = device.upload(b"abc")
    gate = Semaphore()
    device.queue.barrier(wait=gate.at(1))
    for use in (buffer.read, lambda timeout: buffer.write(b"x", timeout=timeout), lambda timeout: buffer.map(timeout=timeout)):
        with pytest.raises(DeadlineError):
            use(timeout=0.001)
    with pytest.raises(DeadlineError):
        device.queue.wait_idle(0.001)
    gate.signal(1)
    device.queue.wait_idle(LONG)
    assert bytes(buffer.read()) == b"xbc"


def test_fill_and_copy(device):
    buffer, other = device.upload(bytes(8)), device.upload(bytes(8))
    device.queue.fill(buffer.view(2, 4), b"ab")
    device.queue.copy(buffer.view(2, 2), other.view(6))
    device.queue.copy(buffer.view(2, 2), buffer.view(6, 2))
    assert bytes(buffer.read()) == b"\0\0ababab"
    assert bytes(other.read()) == b"\0" * 6 + b"ab"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda queue, buffer: queue.fill(buffer, b"abc"), "1, 2 or 4 bytes, not 3"),
        (lambda queue, buffer: queue.fill(buffer.view(0, 6), b"abcd"), "no whole number of 4-byte patterns"),
        (lambda queue, buffer: queue.fill(buffer.view(2, 4), b"abcd"), "no whole number of 4-byte patterns"),
        (lambda queue, buffer: queue.update(buffer, b"x" * 9), "9 bytes at 0 are not inside 8 bytes"),
        (lambda queue, buffer: queue.update(buffer.view(4), b"x", 4), "not inside 4 bytes"),
        (lambda queue, buffer: queue.read(buffer, bytearray(9)), "not inside 8 bytes"),
        (lambda queue, buffer: queue.read(buffer, bytes(4)), "read-only"),
        (lambda queue, buffer: queue.copy(buffer, buffer.view(0, 4)), "the target has 4 bytes, the source 8"),
        (lambda queue, buffer: queue.copy(buffer.view(0, 4), buffer.view(3, 4)), "overlap; copy through another"),
    ],
)
def test_a_wrong_operation_is_refused_before_it_is_submitted(device, call, message):
    buffer = device.allocate(8)
    with pytest.raises(UsageError, match=message):
        call(device.queue, buffer)
    assert device.queue.timeline.value == 0


def test_a_buffer_or_kernel_of_another_device_is_refused(device, other_device):
    mine, other = device.allocate(4), other_device.allocate(4)
    kernel = other_device.load_artifact(PYTHON, {}, [KernelInfo("k")])["k"]
    for call in (
        lambda: device.queue.fill(other),
        lambda: device.queue.copy(mine, other),
        lambda: device.queue.copy(other, mine),
        lambda: device.queue.update(other, b"x"),
        lambda: device.queue.read(other, bytearray(1)),
    ):
        with pytest.raises(UsageError, match="belongs to another device"):
            call()
    with pytest.raises(UsageError, match="loaded on another device"):
        device.queue.dispatch(kernel, (1, 1, 1), [])


def test_h11_a_dispatch_runs_its_kernel_between_its_timepoints(device):
    def add(grid, memories, constants):
        a, b, out = memories
        for index in range(int.from_bytes(constants, "little")):
            out[index] = a[index] + b[index]

    rules = (*(BindingRule(name, constant="n", scale=1, alignment=1) for name in "ab"), BindingRule("out", alignment=1))
    kernel = device.load_artifact(PYTHON, {"add": add}, [KernelInfo("add", rules, (ConstantRule("n"),))])["add"]
    a, b, out = device.upload(b"\1\2\3"), device.upload(b"\4\5\6"), device.upload(bytes(4))
    gate, told = device.semaphore(), device.semaphore()
    done = device.queue.dispatch(kernel, (1, 1, 1), [a, b, out.view(1)], (3,), wait=gate.at(1), signal=[told.at(2)])
    assert not done.done
    gate.signal(1)
    told.wait(2, LONG)
    assert bytes(out.read()) == b"\0\5\7\11"


def test_a_failed_queue_leaves_the_next_one_alone(device):
    def explode(grid, memories, constants):
        raise MemoryError("no")

    kernel = device.load_artifact(PYTHON, {"explode": explode}, [KernelInfo("explode")])["explode"]
    with pytest.raises(DeviceError, match="MemoryError: no"):
        device.queue.dispatch(kernel, (1, 1, 1), []).wait(LONG)
    with pytest.raises(DeviceError, match="MemoryError: no"):
        device.queue.barrier()
    device.queues[1].barrier().wait(LONG)


def test_allocation_is_bounded(device):
    limit = device.info.heaps[0].max_allocation
    device.allocate(limit)
    with pytest.raises(OutOfMemoryError, match=f"asked for {limit + 1:,} bytes, one buffer can have {limit:,}"):
        device.allocate(limit + 1)
    with pytest.raises(UsageError, match="cannot have -1 bytes"):
        device.allocate(-1)


def test_an_upload_that_fails_gives_its_memory_back(device):
    device.queue.timeline.fail(DeviceError("gone"))
    with pytest.raises(DeviceError, match="gone"):
        device.upload(b"abc")
    assert [buffer.released for buffer in device.allocated] == [1]


def test_h19_a_bundle_is_loaded_by_the_target_that_fits(device):
    other = Target("python", "else")
    bundle = Bundle.from_parts("b", [KernelInfo("k")], {PYTHON: b"chosen", other: b"other"})
    executable = device.load(bundle)
    assert (executable.target, executable.functions, executable["k"].info) == (PYTHON, b"chosen", bundle.kernels[0])
    with pytest.raises(NotFoundError, match="it takes python:any; the bundle has python:else"):
        device.load(Bundle.from_parts("b", [KernelInfo("k")], {other: b"other"}))


def test_an_artifact_for_another_target_is_refused(device):
    with pytest.raises(UsageError, match="scratch does not take cuda:sm_90; it takes python:any"):
        device.load_artifact(Target("cuda", "sm_90"), b"", [])


def test_a_closed_device_says_so(device):
    with device:
        assert not device.closed
    assert device.closed
    for call in (
        lambda: device.allocate(1),
        lambda: device.upload(b"x"),
        device.semaphore,
        lambda: device.load_artifact(PYTHON, {}, []),
    ):
        with pytest.raises(ClosedError, match="open it again"):
            call()
    assert repr(device) == "<Device scratch:// 'scratch' closed>"
    device.close()


def test_drivers_are_found_by_scheme():
    assert find_driver("null").__name__ == DRIVERS["null"]
    with pytest.raises(NotFoundError, match=r"no driver for 'warp'; known: cpu, .*null, .*remote-tcp"):
        find_driver("warp")
