"""What both directions of the bulk lane share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from remora.errors import Error

__all__ = ["Done"]

#: Called once with None or why the transfer failed: from a bulk thread, or from within `expect` when everything was here before.
#: It must not block.
Done: TypeAlias = Callable[[Error | None], None]
