"""The null driver's extension `null.bytes`: what a vendor's own operations look like, from the declaration to the work.

0 reverse   the bytes of each buffer in the opposite order; no payload
1 xor       each byte of each buffer with the payload's one byte
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from remora.errors import UsageError
from remora.hal.extension import Extension

if TYPE_CHECKING:
    from remora.drivers.null.memory import Memory

__all__ = ["BYTES", "run"]

#: What the device declares in its facts.
BYTES: Final = Extension("null.bytes", ("reverse", "xor"))
REVERSE: Final = 0


def run(operation: int, payload: bytes, places: Sequence[tuple[Memory, int, int]]) -> None:
    """Do it, at the operation's turn. Raises UsageError for a payload that is none."""
    if len(payload) != operation:
        raise UsageError(f"null.bytes {BYTES.operations[operation]} takes {operation} bytes of payload, not {len(payload)}")
    for memory, offset, size in places:
        there = memory.at(offset, size)
        there[:] = bytes(there[::-1]) if operation == REVERSE else bytes(byte ^ payload[0] for byte in there)
