"""What wakes a thread that polls."""

from __future__ import annotations

import os

from remora.errors import BusyError

__all__ = ["Wake"]


class Wake:
    """An eventfd, closed with its object at the latest. Raises BusyError when there is no descriptor left for it."""

    _fd = -1

    def __init__(self) -> None:
        try:
            for fd in map(os.eventfd, (0,), (os.EFD_CLOEXEC | os.EFD_NONBLOCK,)):  # an interruption cannot lose it
                self._fd = fd
        except OSError as error:
            raise BusyError(f"no descriptor for a link: {error.strerror}; close something here, or raise `ulimit -n`") from error

    def fileno(self) -> int:
        """The descriptor to poll, -1 when it is closed."""
        return self._fd

    def ring(self) -> None:
        """Make it readable."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def hush(self) -> None:
        """Make it unreadable; only when it is readable."""
        os.eventfd_read(self._fd)

    def close(self) -> None:
        """Let go of the descriptor. Safe to repeat."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
