"""The named globals of an executable: memory of its own, as buffers (H19)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, final

from remora.errors import NotFoundError

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer
    from remora.hal.executable import Executable

__all__ = ["NamedGlobals"]


@final
class NamedGlobals(Mapping[str, "Buffer"]):
    """The globals of an executable by name. A name gives the same buffer each time, until that is closed.

    The buffer and the code share the memory, so what a kernel writes is there after the kernel. Each load of a bundle has globals
    of its own. They are closed with their executable; a remote one costs a round trip when it is first asked for.

    Example: `kernels.globals["total"].read()`.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._rules = {rule.name: rule for rule in executable.info.globals}
        self._lock = threading.Lock()
        self._open: dict[str, Buffer] = {}

    def __getitem__(self, name: str) -> Buffer:
        with self._lock:
            buffer = self._open.get(name)
            if buffer is None or buffer.closed:
                buffer = self._open[name] = self.another(name)
        return buffer

    def another(self, name: str) -> Buffer:
        """A buffer of a global that the caller closes. Raises NotFoundError, ClosedError, UnsupportedError as a look-up does."""
        rule = self._rules.get(name)
        if rule is None:
            there = ", ".join(self._rules) or "none"
            raise NotFoundError(f"there is no global {name!r}; this executable has: {there}")
        if self._executable.closed:
            raise self._executable._closed_error()
        return self._executable._global(rule)

    def __contains__(self, name: object) -> bool:
        return name in self._rules

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def close(self) -> None:
        """Close the buffers. Safe to repeat. Raises UsageError while one of them is mapped."""
        with self._lock:
            for name, buffer in tuple(self._open.items()):
                buffer.close()
                del self._open[name]
