"""All calls of the control lane, by method number. A number that is not here is refused."""

from __future__ import annotations

from typing import Any, Final

from remora.wire import command_buffer_calls, executable_calls, export_calls, file_calls, memory_calls, profile_calls, sharing_calls
from remora.wire.method import Method

__all__ = ["METHODS", "method_of"]

METHODS: Final[dict[int, Method]] = {
    **executable_calls.METHODS,
    **export_calls.METHODS,
    **command_buffer_calls.METHODS,
    **file_calls.METHODS,
    **profile_calls.METHODS,
    **memory_calls.METHODS,
    **sharing_calls.METHODS,
}
_NUMBERS: Final[dict[type[Any], int]] = {method.request: number for number, method in METHODS.items()}


def method_of(body: Any) -> int:
    """The method that a request's body belongs to. Raises KeyError for anything else."""
    return _NUMBERS[type(body)]
