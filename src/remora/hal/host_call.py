"""Host calls: functions of the program that a queue runs in its order (requirements H17, H27)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import DeviceError, Error

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_call"]


def run_call(call: Callable[[], object]) -> None:
    """Run it. What it raises comes out as it is when it is an Error, else as DeviceError with it as the cause."""
    try:
        call()
    except Error:
        raise
    except Exception as error:
        name = getattr(call, "__qualname__", type(call).__qualname__)
        raise DeviceError(f"the host call {name} raised {type(error).__name__}: {error}") from error
