"""Work beside a test, in a thread of its own."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["background"]

#: How long a thread may take to start, in seconds.
START_S: Final = 30.0


def background(work: Callable[[], Any]) -> Future[Any]:
    """Run `work` in a daemon thread; returns once the thread runs."""
    future: Future[Any] = Future()
    running = threading.Event()

    def run() -> None:
        running.set()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    assert running.wait(START_S)
    return future
