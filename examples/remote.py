"""A matrix product on a device behind a URI, in another process or on another machine. Needs NumPy.

remora serve --bind tcp://127.0.0.1:5000
python examples/remote.py remote-tcp://127.0.0.1:5000
"""

import sys

import numpy as np

import remora
from remora import samples

SIZE = 512  # what the sample was compiled for


def main(uri: str) -> int:
    try:
        with remora.open(uri, retry=5) as device:  # keeps trying for 5 seconds while nobody answers
            print(device.name, *device.targets)
            multiply(device)
    except remora.Error as error:  # one tree for all errors, with the cause from the other side
        print(f"{error.code.name}: {error}", file=sys.stderr)
        return 1
    return 0


def multiply(device: remora.Device) -> None:
    matmul = device.load(samples.load("matmul"))["matmul"]
    rng = np.random.default_rng(7)
    a, b = rng.integers(-8, 9, (2, SIZE, SIZE)).astype(np.float32)

    x, y, z = device.upload(a), device.upload(b), device.allocate(a.nbytes)
    device.queue.dispatch(matmul, matmul.grid_for(), [x, y, z])
    product = np.frombuffer(z.read(timeout=30), np.float32).reshape(SIZE, SIZE)  # waits for what was submitted before

    assert np.array_equal(product, a @ b), "whole numbers this small have no rounding"
    print(f"multiplied two {SIZE} x {SIZE} matrices, exactly")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "remote-tcp://127.0.0.1:5000"))
