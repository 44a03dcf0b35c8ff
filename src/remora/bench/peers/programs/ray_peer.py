"""Ray: a node on this machine and an actor. Large arguments and results go through its object store in shared memory."""

from __future__ import annotations

import os
from tempfile import gettempdir
from typing import Any

import speak

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "100"}

with speak.importing():
    import ray

STORE_BYTES = 4096 * speak.MIB


class Store:
    """The actor."""

    def __init__(self) -> None:
        self._memory: Any = None

    def pid(self) -> int:
        return os.getpid()

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
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=STORE_BYTES,
            _temp_dir=gettempdir(),
        )
        self._actor = ray.remote(Store).remote()
        self.server_pids = [ray.get(self._actor.pid.remote())]
        self._small = self._actor.small

    def small(self) -> None:
        ray.get(self._small.remote())

    def pipeline(self, count: int) -> None:
        ray.get([self._small.remote() for _ in range(count)])

    def prepare(self, size: int) -> None:
        import numpy as np

        self._memory: Any = np.zeros(size, "u1")

    def upload(self) -> None:
        ray.get(self._actor.store.remote(self._memory))

    def download(self) -> None:
        self._got = ray.get(self._actor.load.remote())

    def whole(self, left: memoryview, right: memoryview) -> Any:
        import numpy as np

        return ray.get(self._actor.add.remote(np.frombuffer(left, "f4"), np.frombuffer(right, "f4")))

    def close(self) -> None:
        ray.shutdown()


if __name__ == "__main__":
    speak.client(Client)
