"""Dask: a scheduler, a worker without a nanny, and an actor on it, which the client talks to without the scheduler."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import speak

with speak.importing():
    import distributed


class Store:
    """The actor."""

    def __init__(self) -> None:
        self._memory: Any = None

    def small(self) -> int:
        return 1

    def store(self, memory: Any) -> int:
        self._memory = memory
        return 1

    def load(self) -> Any:
        return self._memory

    def add(self, left: Any, right: Any) -> Any:
        return left + right


class Client(speak.Work):
    def __init__(self) -> None:
        self._scheduler, ready = speak.start(__file__, "scheduler")
        self._worker, _ = speak.start(__file__, "worker", ready["address"])
        self.server_pids = [self._worker.pid]
        self._client = distributed.Client(ready["address"])  # actors look for the default client
        self._actor: Any = self._client.submit(Store, actor=True).result()

    def small(self) -> None:
        self._actor.small().result()

    def pipeline(self, count: int) -> None:
        for result in [self._actor.small() for _ in range(count)]:
            result.result()

    def prepare(self, size: int) -> None:
        import numpy as np

        self._memory: Any = np.zeros(size, "u1")

    def upload(self) -> None:
        self._actor.store(self._memory).result()

    def download(self) -> None:
        self._memory = self._actor.load().result()

    def whole(self, left: memoryview, right: memoryview) -> Any:
        import numpy as np

        return self._actor.add(np.frombuffer(left, "f4"), np.frombuffer(right, "f4")).result()

    def close(self) -> None:
        self._worker.kill()
        self._scheduler.kill()


async def serve(words: list[str]) -> None:
    """Be the scheduler or the worker until the client's process ends."""
    here = {"host": "127.0.0.1", "dashboard": False}
    node = distributed.Worker(words[1], nthreads=1, **here) if words[0] == "worker" else distributed.Scheduler(port=0, **here)
    async with node:
        speak.say(address=node.address)
        await asyncio.to_thread(speak.until_end_of_input)
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:]:
        speak.own_standard_output()
        speak.die_with_parent()
        asyncio.run(serve(sys.argv[1:]))
    else:
        speak.client(Client)
