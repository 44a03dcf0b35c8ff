"""`remora check`: does a device compute? Connect, list targets, pick, upload, dispatch, verify exact results (H40)."""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TypeVar

import remora
from remora import samples
from remora.base.uri import parse_uri
from remora.cli.show import CONSOLE, amount, duration, fact, print_error, waiting
from remora.errors import DeviceError, Error
from remora.hal.registry import find_driver

__all__ = ["add_arguments", "run"]

#: Enough for several workgroups with a rest, and for the bulk lane.
ELEMENTS = 100_003
ROUNDS = 2
MASK = 0xFFFFFFFF
T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora check`."""
    parser.add_argument("uri", metavar="URI", help="what to check: remote-tcp://host:5000, remote-unix:///path?device=1, cpu")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds that each step may take (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Check every device behind the URI, or the one that it picks. 0 when all pass."""
    uri = parse_uri(args.uri)
    find_driver(uri.scheme)
    begin = perf_counter()
    try:
        with waiting(f"connecting to {args.uri}"):
            host = remora.Host(args.uri, [remora.open(args.uri)]) if "device" in uri.query else remora.connect(args.uri)
        with host:
            fact("connect", args.uri, duration(perf_counter() - begin))
            for number, device in enumerate(host.devices):
                fact(f"device {number}", device.name, f"[{device.info.driver}]")
                check_device(device, args.timeout)
    except Error as error:
        fact("FAIL", f"after {duration(perf_counter() - begin)}", style="red")
        CONSOLE.file.flush()
        print_error(error, verbose=args.verbose)
        return 1
    fact("PASS", f"in {duration(perf_counter() - begin)}", style="green")
    return 0


def check_device(device: remora.Device, timeout: float) -> None:
    """Run two kernels on one device. Raises DeviceError when a result is wrong, or the error that came in between."""
    fact("targets", " ".join(map(str, device.targets)) or "none")
    bundle = samples.load("vector")
    target, artifact = bundle.select(device.targets)
    info = bundle.info_for(target)
    kernels = step("pick", lambda: device.load_artifact(target, artifact, info), str(target), amount(len(artifact), "B"))
    source = random.Random(1)
    x, y = (array("I", source.randbytes(4 * ELEMENTS)) for _ in range(2))
    left, right = step("upload", lambda: (device.upload(x), device.upload(y)), amount(8 * ELEMENTS, "B"))
    out = device.allocate(4 * ELEMENTS)
    add, mix, queue = kernels["add_i32"], kernels["mix_u32"], device.queue
    grid = add.grid_for(ELEMENTS)
    step("dispatch", lambda: queue.dispatch(add, grid, [left, right, out], (ELEMENTS,)).wait(timeout), "add_i32")
    verify("add_i32", out, (a + b & MASK for a, b in zip(x, y, strict=True)), timeout)
    step("dispatch", lambda: queue.dispatch(mix, grid, [left, out], (ELEMENTS, ROUNDS)).wait(timeout), "mix_u32")
    verify("mix_u32", out, map(mixed, x), timeout)
    for buffer in (left, right, out):
        buffer.close()


def step(label: str, action: Callable[[], T], *told: str) -> T:
    """Do one step and print how long it took."""
    begin = perf_counter()
    result = action()
    fact(label, *told, duration(perf_counter() - begin))
    return result


def verify(name: str, buffer: remora.Buffer, expected: Iterable[int], timeout: float) -> None:
    """Compare the buffer with what this process computes itself, bit for bit."""
    got = array("I", bytes(step("download", lambda: buffer.read(timeout=timeout), amount(buffer.size, "B"))))
    wanted = array("I", expected)
    if got != wanted:
        at = next(index for index, (g, w) in enumerate(zip(got, wanted, strict=True)) if g != w)
        raise DeviceError(f"{name} computed {got[at]} for element {at}, {wanted[at]} is right: the device or its driver is broken")
    fact("verify", name, f"{ELEMENTS:,} elements are exact")


def mixed(value: int) -> int:
    """What mix_u32 computes, ROUNDS times."""
    for _ in range(ROUNDS):
        value ^= value >> 16
        value = value * 0x7FEB352D & MASK
        value ^= value >> 15
        value = value * 0x846CA68B & MASK
        value ^= value >> 16
    return value
