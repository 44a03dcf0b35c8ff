"""A proxy that stands still again and again, for random but repeatable times.

    with DelayProxy(server.address, 0.0) as proxy, RandomStalls(proxy, seed=1) as stalls: ...

It runs for up to `run_s` seconds, stands still for up to `stall_s`, and so on until `close`, which lets everything flow.
"""

from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING, Self

from remora.errors import UsageError

if TYPE_CHECKING:
    from remora.testing.proxy import DelayProxy

__all__ = ["RandomStalls"]


class RandomStalls:
    """Stalls a proxy that it does not own. `count` says how often so far. Owns a thread; `close` joins it, `with` closes."""

    def __init__(self, proxy: DelayProxy, seed: int, *, run_s: float = 0.02, stall_s: float = 0.1) -> None:
        if run_s <= 0 or stall_s <= 0:
            raise UsageError(f"stalls need times above 0 s, got run_s={run_s} and stall_s={stall_s}")
        self.count = 0
        self._proxy = proxy
        self._dice = Random(seed)
        self._times = (stall_s, run_s)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stalls of {proxy.address}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        stall_s, run_s = self._times
        while not self._over.is_set():
            self._proxy.stall()
            self.count += 1
            self._over.wait(self._dice.uniform(0, stall_s))
            self._proxy.resume()
            self._over.wait(self._dice.uniform(0, run_s))

    def close(self) -> None:
        """Let everything flow and join the thread. Idempotent."""
        self._over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()
