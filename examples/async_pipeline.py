"""Two queues and asyncio: while one queue computes a batch, the other one moves the next. Runs on any URI, cpu if none is given.

Every operation returns a timepoint at once. Operations wait for timepoints on the device, without coming back here between.
"""

import asyncio
import sys
from array import array

import remora
from remora import samples

N = 1 << 18
BATCHES = 8


async def main(uri: str) -> None:
    with remora.open(uri) as device:
        move, compute = device.queues[:2]
        kernels = device.load(samples.load("vector"))
        add, grid = kernels["add_i32"], kernels["add_i32"].grid_for(N)

        slots = [(device.allocate(4 * N), device.allocate(4 * N)) for _ in range(2)]  # batches take turns
        results = [array("I", bytes(4 * N)) for _ in range(BATCHES)]
        computed, fetched = [], []

        def fetch(batch: int) -> None:
            fetched.append(move.read(slots[batch % 2][1], results[batch], wait=computed[batch]))

        for batch in range(BATCHES):
            source, sums = slots[batch % 2]
            # `move` runs in order: the read of batch - 2 is behind it, so both buffers of the slot are free again.
            uploaded = move.update(source, array("I", [batch]) * N)
            computed.append(compute.dispatch(add, grid, [source, source, sums], (N,), wait=uploaded))
            if batch:
                fetch(batch - 1)  # while `compute` works on this batch
        fetch(BATCHES - 1)

        for batch, done in enumerate(fetched):
            await done  # the event loop stays free
            assert results[batch] == array("I", [2 * batch]) * N
            print(f"batch {batch} is here, exactly")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "cpu"))
