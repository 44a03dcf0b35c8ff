"""Opening a file beneath a directory, and nowhere else, whatever links and renames are in between.

With openat2 (Linux 5.6) the kernel resolves the path and refuses to leave the directory; links that stay inside are followed.
Where it is missing each component is opened by itself, and no link is followed.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Sequence
from typing import Final

__all__ = ["has_openat2", "open_beneath", "walk_beneath"]

SYS_OPENAT2: Final = 437
RESOLVE_NO_MAGICLINKS, RESOLVE_BENEATH = 0x02, 0x08
#: Times that openat2 is asked again, when a rename beside it made it unsure.
TRIES: Final = 16
MODE: Final = 0o666


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_long)
_syscall.restype = ctypes.c_long


@functools.cache
def has_openat2() -> bool:
    """Whether the kernel has it, and lets this process use it: then it finds fault with the size 0, and not before."""
    _syscall(SYS_OPENAT2, -1, None, None, 0)
    return ctypes.get_errno() == errno.EINVAL


def open_beneath(directory: int, components: Sequence[str], flags: int) -> int:
    """The descriptor of a file beneath an open directory; `flags` as of os.open. Raises OSError."""
    if not has_openat2():
        return walk_beneath(directory, components, flags)
    how = _How(flags | os.O_CLOEXEC, MODE if flags & os.O_CREAT else 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    path = os.fsencode("/".join(components))
    code = errno.EAGAIN
    for _ in range(TRIES):
        fd: int = _syscall(SYS_OPENAT2, directory, path, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


def walk_beneath(directory: int, components: Sequence[str], flags: int) -> int:
    """The same, component by component. A link anywhere raises OSError (ELOOP or ENOTDIR)."""
    at = directory
    try:
        for component in components[:-1]:
            below = os.open(component, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            if at != directory:
                os.close(at)
            at = below
        return os.open(components[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, MODE, dir_fd=at)
    finally:
        if at != directory:
            os.close(at)
