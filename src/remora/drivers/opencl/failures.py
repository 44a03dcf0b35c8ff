"""What OpenCL's status codes mean here: whose fault it is, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl

from remora.errors import DeviceError, DeviceLostError, Error, OutOfMemoryError

__all__ = ["failing", "translate"]

#: CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_INVALID_BUFFER_SIZE.
OUT_OF_MEMORY = frozenset({-4, -6, -61})
#: CL_OUT_OF_RESOURCES: some drivers say so of a kernel that went out of bounds.
OUT_OF_RESOURCES = -5
#: CL_DEVICE_NOT_AVAILABLE, CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, CL_INVALID_CONTEXT, CL_INVALID_COMMAND_QUEUE.
LOST = frozenset({-2, -14, -34, -36})
#: Codes below this are a vendor's own: they follow a fault on the device.
VENDOR = -1100


def translate(error: cl.Error, what: str) -> Error:
    """The error of `what` as remora says it."""
    code = error.code
    text = f"{what}: {error}".rstrip()
    if code in OUT_OF_MEMORY:
        return OutOfMemoryError(f"{text}. The device has no room for it: close buffers first")
    if code == OUT_OF_RESOURCES:
        return DeviceError(
            f"{text}. Memory is short, or a kernel went out of bounds: close buffers; if it stays, open the device again"
        )
    if code in LOST or code < VENDOR:
        return DeviceLostError(f"{text}. The device has stopped after a fault: open it again")
    return DeviceError(f"{text}. The OpenCL driver refused this (code {code})")


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Errors of OpenCL inside become errors of remora that name `what`."""
    try:
        yield
    except cl.Error as error:
        raise translate(error, what) from None
