"""One graph over two devices, say `python examples/two_devices.py cpu opencl`; two processors' devices if none are given.

What both use is placed on both, and the runtime brings over what the other one wrote, when it is needed and not before.
"""

import sys
from array import array

from remora import samples
from remora.graph import HOST_VISIBLE, Runtime, shared_with

N = 1 << 16


def main(first: str, second: str) -> None:
    with Runtime(first, second) as runtime:
        vector = samples.load("vector")
        here, there = (runtime.device(engine).load(vector)["add_i32"] for engine in (0, 1))
        ones = runtime.allocate(4 * N, shared_with(1))
        total, other = runtime.allocate(4 * N, shared_with(1)), runtime.allocate(4 * N, shared_with(1))
        result = runtime.allocate(4 * N, HOST_VISIBLE)

        graph = runtime.graph("there and back")
        graph.fill(ones, (1).to_bytes(4, "little"))
        graph.kernel(here, [ones, ones, total], (N,))
        graph.kernel(there, [total, ones, other], (N,))
        graph.kernel(here, [other, ones, total], (N,))
        graph.copy(total, result)
        replay = graph.prepare()
        print("\n".join(replay.regions))
        replay.submit().wait(timeout=30)

        with result.read() as guard:
            assert array("i", bytes(guard.view)) == array("i", [4]) * N
        staged = runtime.statistics().staged_bytes
        print(f"{N:,} sums, exactly; {staged / 1e3:.0f} kB went from one device to the other")


if __name__ == "__main__":
    main(*sys.argv[1:3] or ("cpu", "cpu"))
