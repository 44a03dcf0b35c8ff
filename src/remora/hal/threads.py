"""Starting a thread, which the system may refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable

from remora.errors import BusyError

__all__ = ["start_thread"]


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """A running daemon thread. Raises BusyError when the system gives no more threads; then nothing was started."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # it came inside, and left a lock in disorder
            raise error.__context__ from None
        raise BusyError(
            f"the system gives this process no more threads (for {name!r}): end some, or raise the limit, `ulimit -u`"
        ) from None
    return thread
