"""Artifacts: the bytes of machine code, and where they lie (H19).

A driver gets what the user gave: anything bytes-like, or an `Artifact`. One with a descriptor lies in a sealed memory file, which
nobody can change any more; a driver that loads code from files takes that file and copies nothing.
"""

from __future__ import annotations

from typing import Any, final

from remora.hal.dlpack import host_bytes

__all__ = ["Artifact"]


@final
class Artifact:
    """The bytes of an artifact. `descriptor` is the sealed memory file that holds exactly these, or -1; it is borrowed.

    Whoever keeps the file beyond the call duplicates the descriptor.
    """

    __slots__ = ("descriptor", "view")

    def __init__(self, view: memoryview, descriptor: int = -1) -> None:
        self.view = view
        self.descriptor = descriptor

    @classmethod
    def of(cls, data: Any) -> Artifact:
        """What a user gave: an Artifact as it is, or anything bytes-like. Raises UsageError for anything else."""
        return data if isinstance(data, cls) else cls(host_bytes(data))
