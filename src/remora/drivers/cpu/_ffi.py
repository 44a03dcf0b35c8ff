"""The C side: the worker pool (pool.c), the structures of the executable-library ABI, and addresses of Python memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from remora.errors import BusyError, UnsupportedError

__all__ = [
    "Attributes",
    "Environment",
    "HostPin",
    "KernelRecord",
    "Library",
    "Pool",
    "PoolLibrary",
    "copy_bytes",
    "load_pool",
    "map_memory",
    "protect_memory",
    "set_bytes",
    "unmap_memory",
]

POOL_PATH = Path(__file__).with_name("_pool.so")

#: memmove(target, source, bytes) and memset(target, byte, bytes) on addresses. Both release the GIL.
copy_bytes: Callable[[int, int, int], int | None] = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)(
    ctypes.cast(ctypes.CDLL(None).memmove, c_void_p).value or 0
)
set_bytes: Callable[[int, int, int], int | None] = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_int, c_size_t)(
    ctypes.cast(ctypes.CDLL(None).memset, c_void_p).value or 0
)


_libc = ctypes.CDLL(None, use_errno=True)
_mmap = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_int64, use_errno=True)(("mmap", _libc))
_munmap = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, use_errno=True)(("munmap", _libc))
_mprotect = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_int, use_errno=True)(("mprotect", _libc))
_MAP_FAILED = ctypes.c_size_t(-1).value


def map_memory(address: int, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    """mmap(2); the address. Raises OSError."""
    found = _mmap(address, size, protection, flags, fd, offset)
    if found is None or found == _MAP_FAILED:
        raise _system_error()
    return int(found)


def unmap_memory(address: int, size: int) -> None:
    """munmap(2). Raises OSError."""
    if _munmap(address, size):
        raise _system_error()


def protect_memory(address: int, size: int, protection: int) -> None:
    """mprotect(2). Raises OSError."""
    if _mprotect(address, size, protection):
        raise _system_error()


def _system_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class Environment(Structure):
    """iree_hal_executable_environment_v0_t, 96 bytes."""

    _fields_ = (
        ("constants", c_void_p),
        ("import_thunk", c_void_p),
        ("import_funcs", c_void_p),
        ("import_contexts", c_void_p),
        ("processor", c_uint64 * 8),
    )


class Header(Structure):
    """iree_hal_executable_library_header_t, 24 bytes."""

    _fields_ = (("version", c_uint32), ("name", c_char_p), ("features", c_uint32), ("sanitizer", c_uint32))
    version: int
    sanitizer: int


class Attributes(Structure):
    """iree_hal_executable_dispatch_attrs_v0_t, 64 bytes."""

    _fields_ = (
        ("flags", c_uint64),
        ("local_memory_pages", c_uint16),
        ("constant_count", c_uint8),
        ("binding_count", c_uint8),
        ("workgroup_size_x", c_uint32),
        ("workgroup_size_y", c_uint32),
        ("workgroup_size_z", c_uint16),
        ("parameter_count", c_uint16),
        ("reserved", c_uint64 * 5),
    )
    local_memory_pages: int
    constant_count: int
    binding_count: int


class Imports(Structure):
    """iree_hal_executable_import_table_v0_t, 16 bytes."""

    _fields_ = (("count", c_uint32), ("symbols", POINTER(c_char_p)))
    count: int
    symbols: Any


class Exports(Structure):
    """iree_hal_executable_export_table_v0_t, 80 bytes."""

    _fields_ = (
        ("count", c_uint32),
        ("pointers", POINTER(c_void_p)),
        ("attributes", POINTER(Attributes)),
        ("params", c_void_p),
        ("occupancy", c_void_p),
        ("names", POINTER(c_char_p)),
        ("tags", c_void_p),
        ("parameter_names", c_void_p),
        ("source_locations", c_void_p),
        ("stage_locations", c_void_p),
    )
    count: int
    pointers: Any
    attributes: Any
    names: Any


class Library(Structure):
    """iree_hal_executable_library_v0_t, 128 bytes."""

    _fields_ = (
        ("header", POINTER(Header)),
        ("imports", Imports),
        ("exports", Exports),
        ("constant_count", c_uint32),
        ("source_count", c_uint32),
        ("source_padding", c_uint32),
        ("source_files", c_void_p),
    )
    header: Any
    imports: Imports
    exports: Exports
    constant_count: int


class KernelRecord(Structure):
    """remora_kernel_t of pool.c."""

    _fields_ = (
        ("pool", c_void_p),
        ("entry", c_void_p),
        ("environment", c_void_p),
        ("ns_per_workgroup", c_double),
        ("local_memory_bytes", c_uint32),
        ("workgroup_size_x", c_uint32),
        ("workgroup_size_y", c_uint32),
        ("workgroup_size_z", c_uint16),
        ("constant_count", c_uint16),
        ("binding_count", c_uint32),
        ("outliers", c_uint32),
    )
    ns_per_workgroup: float


class PoolLibrary(NamedTuple):
    """The functions of pool.c."""

    create: Callable[[int], int | None]
    destroy: Callable[[int], None]
    dispatch: Callable[[c_void_p], int]
    relocate: Callable[[int, bytes, int, bytes], None]
    play: Callable[[int, int, c_void_p], int]


@cache
def load_pool() -> PoolLibrary:
    """Load the worker pool. Raises UnsupportedError when the installed package has none for this machine."""
    try:
        library = ctypes.CDLL(str(POOL_PATH))
    except OSError as error:
        raise UnsupportedError(
            f"the worker pool of the cpu driver does not load ({error}): install remora again on this machine, with pip install"
        ) from None
    return PoolLibrary(
        ctypes.CFUNCTYPE(c_void_p, c_uint32)(("remora_pool_create", library)),
        ctypes.CFUNCTYPE(None, c_void_p)(("remora_pool_destroy", library)),
        ctypes.CFUNCTYPE(c_int, c_void_p)(("remora_dispatch", library)),
        ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_uint64, c_void_p)(("remora_relocate", library)),
        ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_void_p)(("remora_play", library)),
    )


class Pool:
    """A worker pool: `threads` cores share the workgroups of each dispatch. Owned by the device."""

    def __init__(self, threads: int) -> None:
        functions = load_pool()
        address = functions.create(threads)
        if address is None:
            raise BusyError(
                f"the system has no room for {threads} threads: open cpu://?threads=1, or raise the process limit (ulimit -u)"
            )
        self.threads = threads
        self.address = address
        self.dispatch = functions.dispatch
        self.relocate = functions.relocate
        self.play = functions.play
        self._destroy = functions.destroy

    def close(self) -> None:
        """Join the workers. No dispatch may be running. Safe to repeat."""
        address, self.address = self.address, 0
        if address:
            self._destroy(address)


class BufferRecord(Structure):
    """Py_buffer of the C API; only the first field is read here."""

    _fields_ = (("buf", c_void_p), ("rest", c_void_p * 10))
    buf: int | None


class HostPin:
    """The address of a contiguous buffer-protocol object, read-only ones too, valid until the pin is dropped."""

    __slots__ = ("_record", "address")

    def __init__(self, view: memoryview) -> None:
        self._record: BufferRecord | None = None
        record = BufferRecord()
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(record), 0)
        self._record = record
        self.address = record.buf or 0

    def __del__(self) -> None:
        if self._record is not None:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._record))
