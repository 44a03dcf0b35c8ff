"""Compare much data and say in one line where it differs.

`assert same(got, expected)` and not `assert got == expected`: with -v, or where the variable CI is set, pytest draws the whole
difference of two sides, which for a megabyte takes longer than any timeout.
"""

from __future__ import annotations

from remora.carriers.carrier import Span

__all__ = ["Same", "same"]


class Same:
    """Whether two spans of bytes are equal; shown as the first difference."""

    def __init__(self, got: Span, expected: Span) -> None:
        self.got = bytes(got)
        self.expected = bytes(expected)

    def __bool__(self) -> bool:
        return self.got == self.expected

    def __repr__(self) -> str:
        if self:
            return f"<{len(self.got)} equal bytes>"
        pairs = zip(self.got, self.expected, strict=False)
        at = next((at for at, (left, right) in enumerate(pairs) if left != right), None)
        if at is None:
            return f"<{len(self.got)} bytes, not {len(self.expected)}; equal as far as both go>"
        return f"<byte {at} of {len(self.got)} is {self.got[at]:#04x}, not {self.expected[at]:#04x}>"


def same(got: Span, expected: Span) -> Same:
    """Truthy if both spans hold the same bytes."""
    return Same(got, expected)
