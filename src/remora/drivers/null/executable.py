"""Loaded code: any artifact is taken."""

from __future__ import annotations

from remora.hal.executable import Executable

__all__ = ["NullExecutable"]


class NullExecutable(Executable):
    """The contracts of the kernels, and no code. A driver loads its artifact here and raises UsageError when it does not fit."""

    closed = False

    def close(self) -> None:
        """Nothing to unload. A driver unloads when the last operation that uses the code is done."""
        self._close_globals()
        self.closed = True
