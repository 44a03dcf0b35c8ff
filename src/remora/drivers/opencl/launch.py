"""Launching a kernel: arguments, the size of the grid, and bindings that begin where OpenCL lets no buffer begin.

A binding is a part of an OpenCL buffer, which may begin only at multiples of the device's base alignment (128 bytes on PoCL). One
that begins elsewhere is copied to memory of its own for the launch, and back behind it when the contract says that it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyopencl as cl

from remora.drivers.opencl.failures import failing
from remora.errors import DeviceError
from remora.hal.buffer import Access

if TYPE_CHECKING:
    from remora.drivers.opencl.buffer import Place
    from remora.drivers.opencl.executable import Program
    from remora.hal.executable import Grid

__all__ = ["Lane", "launch", "run_copy", "run_fill", "run_read", "run_write"]

_ZERO = bytes(4)


class Lane(NamedTuple):
    """The OpenCL side of one queue: an in-order command queue."""

    commands: cl.CommandQueue
    context: cl.Context
    ordinal: int
    alignment: int
    """In bytes, what a part of a buffer has to begin at a multiple of."""


class _Staged(NamedTuple):
    copy: cl.Buffer
    place: Place
    written: bool


def launch(lane: Lane, program: Program, grid: Grid, constants: bytes, places: Sequence[Place]) -> None:
    """Enqueue a launch. It is done when the command queue is, but for a kernel that reports errors, which is waited for.

    Raises DeviceError when the kernel reports one.
    """
    if not all(grid):
        return
    kernel = program.kernel(lane.ordinal)
    with failing(f"kernel {program.name}"):
        staged: list[_Staged] = []
        held: list[cl.Buffer] = []  # a kernel object keeps no argument alive, an enqueued launch does
        for index, each in enumerate(places):
            written = bool(program.info.bindings[index].access & Access.WRITE)
            held.append(_argument(lane, each, staged, written=written))
            kernel.set_arg(index, held[-1])
        index = len(places)
        for part in program.constants:
            kernel.set_arg(index, constants[part])
            index += 1
        for memory in program.globals:
            kernel.set_arg(index, memory.object)
            index += 1
        status = _status(lane) if program.entry.status else None
        if status is not None:
            kernel.set_arg(index, status)
        size = tuple(count * each for count, each in zip(grid, program.workgroup, strict=True))
        cl.enqueue_nd_range_kernel(lane.commands, kernel, size, program.workgroup)
        for copy, place, written in staged:
            if written:
                cl.enqueue_copy(lane.commands, place.memory.object, copy, dst_offset=place.offset, byte_count=place.size)
        if status is not None:
            _check_status(lane, program.name, status)


def _argument(lane: Lane, place: Place, staged: list[_Staged], *, written: bool) -> cl.Buffer:
    memory, offset, size = place
    if not offset % lane.alignment or not size:
        return memory.part(offset, size)
    copy = cl.Buffer(lane.context, cl.mem_flags.READ_WRITE, size)
    cl.enqueue_copy(lane.commands, copy, memory.object, src_offset=offset, byte_count=size)
    staged.append(_Staged(copy, place, written))
    return copy


def _status(lane: Lane) -> cl.Buffer:
    status = cl.Buffer(lane.context, cl.mem_flags.READ_WRITE, len(_ZERO))
    cl.enqueue_copy(lane.commands, status, _ZERO)
    return status


def _check_status(lane: Lane, name: str, status: cl.Buffer) -> None:
    told = bytearray(len(_ZERO))
    cl.enqueue_copy(lane.commands, told, status)
    code = int.from_bytes(told, "little", signed=True)
    if code:
        raise DeviceError(f"kernel {name} failed: a workgroup returned {code}; what the code means is the kernel's to say")


def run_fill(lane: Lane, place: Place, pattern: bytes) -> None:
    """Enqueue a fill. The range begins at a multiple of the pattern's size, and holds it a whole number of times."""
    target = place.memory.object
    if place.size:
        with failing("a fill"):
            cl.enqueue_fill_buffer(lane.commands, target, pattern, place.offset, place.size)


def run_write(lane: Lane, place: Place, data: memoryview) -> None:
    """Copy host bytes into a range, and wait for it."""
    target = place.memory.object
    if data.nbytes:
        with failing("a write"):
            cl.enqueue_copy(lane.commands, target, data, dst_offset=place.offset)


def run_read(lane: Lane, place: Place, into: memoryview) -> None:
    """Copy a range into host memory, and wait for it."""
    source = place.memory.object
    if into.nbytes:
        with failing("a read"):
            cl.enqueue_copy(lane.commands, into, source, src_offset=place.offset)


def run_copy(lane: Lane, source: Place, target: Place) -> None:
    """Enqueue a copy of all of `source` to the start of `target`; the two do not overlap."""
    origin, goal = source.memory.object, target.memory.object
    if source.size:
        with failing("a copy"):
            cl.enqueue_copy(lane.commands, goal, origin, src_offset=source.offset, dst_offset=target.offset, byte_count=source.size)
