"""`remora demo`: a server in another process, two kernels on its device, every result compared with NumPy's.

The one run that shows what the package is for. It needs no compiler and no download: kernels travel in the wheel.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Any, cast

import remora
from remora import samples
from remora.cli.meter import Meter
from remora.cli.show import CONSOLE, amount, fact, waiting
from remora.drivers.remote.device import RemoteDevice
from remora.errors import DeviceError
from remora.testing.server import ServerProcess

__all__ = ["add_arguments", "run"]

ELEMENTS = 16 << 20
MAX_ELEMENTS = 1 << 28
ROUNDS = 8
#: Operations of one round of mix_u32: three shifts, three exclusive ors, two products.
MIX_OPERATIONS = 8
#: The matrices that the sample was compiled for.
SIZE = 512
#: Largest difference from NumPy's float64 product: 512 products of values around 1, summed in float32.
TOLERANCE = 1e-3
SUFFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "k": 10**3, "M": 10**6}


def elements_of(text: str) -> int:
    """`16Mi`, `64Ki`, `1M` or a plain number. Raises ArgumentTypeError for anything else."""
    number = next((text.removesuffix(suffix) for suffix in SUFFIXES if text.endswith(suffix)), text)
    count = int(number) * SUFFIXES.get(text[len(number) :], 1) if number.isascii() and number.isdigit() else 0
    if not 1 <= count <= MAX_ELEMENTS:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of elements from 1 to {MAX_ELEMENTS:,}, such as 64Ki or 16Mi")
    return count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora demo`."""
    parser.add_argument(
        "--elements", type=elements_of, default=ELEMENTS, metavar="N", help="numbers in the integer kernels, such as 64Ki (16Mi)"
    )


def run(args: argparse.Namespace) -> int:
    """0 when every result is right."""
    if find_spec("numpy") is None:
        print("error: the demo compares its results with NumPy, which is not installed", file=sys.stderr)
        print(f"hint: {sys.executable} -m pip install numpy", file=sys.stderr)
        return 1
    with ServerProcess() as server:
        fact("server", f"process {server.pid}, {server.addresses[0]}")
        meter = Meter()
        with waiting("connecting"), meter.measure("connect"):
            device = cast("RemoteDevice", remora.open(server.uri))
        with device:
            meter.device = device
            fact("device", device.name, f"[{device.info.driver}]", f"{len(device.queues)} queues")
            fact("targets", " ".join(map(str, device.targets)))
            integers(device, meter, args.elements)
            matrices(device, meter)
            CONSOLE.print()
            meter.print()
    fact("PASS", "every result is right", style="green")
    return 0


def load(device: remora.Device, meter: Meter, name: str) -> remora.Executable:
    """Load a sample: say which of its artifacts fits, and send only that one."""
    bundle = samples.load(name)
    target, artifact = bundle.select(device.targets)
    total = sum(len(bundle.artifact(each)) for each in bundle.targets)
    chosen = f"{target}, {amount(len(artifact), 'B')} of {amount(total, 'B')} in {len(bundle.targets)} artifacts"
    fact("artifact", f"{name}: {chosen}")
    with meter.measure(f"load {name}", len(artifact)):
        return device.load_artifact(target, artifact, bundle.info_for(target))


def integers(device: remora.Device, meter: Meter, count: int) -> None:
    """Sum two arrays and hash one, modulo 2**32: equal to NumPy in every bit."""
    import numpy as np

    kernels = load(device, meter, "vector")
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 1 << 32, count, dtype=np.uint32) for _ in range(2))
    out = np.empty_like(a)
    x, y = meter.upload("upload a, b", device, a, b)
    z = device.allocate(a.nbytes)
    add, mix, queue = kernels["add_i32"], kernels["mix_u32"], device.queue
    grid = add.grid_for(count)

    meter.repeat("add_i32", lambda: queue.dispatch(add, grid, [x, y, z], (count,)), 3 * a.nbytes, "B/s")
    meter.download("download a + b", z, out)
    compare("add_i32", np.array_equal(out, a + b))
    operations = count * ROUNDS * MIX_OPERATIONS
    meter.repeat("mix_u32", lambda: queue.dispatch(mix, grid, [x, z], (count, ROUNDS)), operations, "op/s")
    meter.download("download mix", z, out)
    for _ in range(ROUNDS):
        mix_in_place(a)
    compare("mix_u32", np.array_equal(out, a))
    fact("verified", f"add_i32, mix_u32 ({ROUNDS} rounds): {count:,} integers each, equal to NumPy's in every bit", style="green")


def mix_in_place(values: Any) -> None:
    """One round of mix_u32, on a NumPy array of uint32."""
    import numpy as np

    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        values ^= values >> np.uint32(shift)
        values *= np.uint32(factor)
    values ^= values >> np.uint32(16)


def matrices(device: remora.Device, meter: Meter) -> None:
    """A float32 product, compiled by IREE, against NumPy's in float64."""
    import numpy as np

    kernel = load(device, meter, "matmul")["matmul"]
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, SIZE, SIZE), dtype=np.float32)
    c = np.empty_like(a)
    x, y = meter.upload("upload matrices", device, a, b)
    z = device.allocate(c.nbytes)
    queue = device.queue
    meter.repeat("matmul", lambda: queue.dispatch(kernel, kernel.grid_for(), [x, y, z]), 2 * SIZE**3, "FLOP/s")
    meter.download("download product", z, c)
    difference = float(np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max())
    compare("matmul", difference <= TOLERANCE)
    fact(
        "verified",
        f"matmul: float32 {SIZE} x {SIZE} x {SIZE}, largest difference from NumPy's in float64 {difference:.1e}",
        style="green",
    )


def compare(name: str, right: bool) -> None:
    """Raise DeviceError unless the results were right."""
    if not right:
        raise DeviceError(f"{name} computed something else than NumPy: the device or its driver is broken; try `remora check cpu`")
