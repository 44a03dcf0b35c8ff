"""Copies of host memory that release the interpreter lock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_void_p

__all__ = ["address_of", "copy_memory"]

#: memmove(target, source, bytes) on addresses.
_move: Callable[[int, int, int], int | None] = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.CDLL(None).memmove, c_void_p).value or 0
)
#: Where the memory of an object is, in one C call: nothing is held that an interruption would leave behind.
_locate: Callable[[object, object, object], int] = ctypes.pythonapi.PyObject_AsReadBuffer


def address_of(view: memoryview) -> int:
    """Of its first byte, read-only views too. Good as long as the caller has the view, and nobody else releases it."""
    address, size = c_void_p(), ctypes.c_ssize_t()
    _locate(ctypes.py_object(view), ctypes.byref(address), ctypes.byref(size))
    return address.value or 0


def copy_memory(target: memoryview, source: memoryview) -> None:
    """Copy `len(source)` bytes to the beginning of `target`, which has room for them and does not overlap."""
    assert target.nbytes >= source.nbytes
    assert not target.readonly
    _move(address_of(target), address_of(source), source.nbytes)
