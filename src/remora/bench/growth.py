"""How cost grows with the number of buffers, sessions, recorded commands and bytes: curves for one picture with log axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import remora
from remora import samples
from remora.bench.context import CARRIERS, MIB
from remora.bench.measure import each
from remora.bench.processes import available
from remora.bench.report import Curve
from remora.hal.device import Device
from remora.hal.executable import Kernel
from remora.testing.server import ServerProcess

__all__ = ["CURVES", "grow"]

ONE = (1, 1, 1)
#: Bytes of a live buffer.
BUFFER_BYTES = 64
#: The largest counts of a run.
FULL = {"buffers": 100_000, "sessions": 64, "commands": 100_000, "bytes": 1 << 30}
QUICK = {"buffers": 1000, "sessions": 4, "commands": 1000, "bytes": 1 << 20}
#: A transfer is left out when memory for so many copies is not free.
MEMORY_SHARE = 6


@dataclass(frozen=True, slots=True)
class Place:
    """Where a curve is measured, and how much."""

    line: str
    uri: str
    quick: bool
    step: Callable[[float], None]

    @property
    def most(self) -> dict[str, int]:
        """The largest counts."""
        return QUICK if self.quick else FULL

    @property
    def samples(self) -> int:
        """Dispatches that a median is taken of."""
        return 50 if self.quick else 400


def decades(first: int, last: int) -> list[int]:
    """first, 10 * first, ... and last."""
    counts = []
    while first < last:
        counts.append(first)
        first *= 10
    return [*counts, last]


def doublings(last: int) -> list[int]:
    """1, 2, 4, ... up to last."""
    return [1 << power for power in range(last.bit_length())]


def _empty(device: Device) -> Kernel:
    return device.load(samples.load("vector"))["empty"]


def _latency_us(device: Device, kernel: Kernel, count: int) -> float:
    """Median microseconds of an empty dispatch and its wait."""
    one = each(lambda: device.queue.dispatch(kernel, ONE, ()).wait())
    one(count // 5)
    return median(one(count)) / 1e3


def live_buffers(place: Place) -> Iterator[Curve]:
    """Dispatch latency while so many buffers are alive."""
    points, buffers = list[tuple[float, float]](), list[Any]()
    with remora.open(place.uri) as device:
        kernel = _empty(device)
        for count in decades(10, place.most["buffers"]):
            buffers += (device.allocate(BUFFER_BYTES) for _ in range(count - len(buffers)))
            device.queue.wait_idle()
            points.append((count, _latency_us(device, kernel, place.samples)))
            place.step(count / place.most["buffers"])
    yield Curve("buffers", place.line, tuple(points))


def live_sessions(place: Place) -> Iterator[Curve]:
    """Dispatch latency of one session while so many are open."""
    points = list[tuple[float, float]]()
    with ExitStack() as stack:
        devices = [stack.enter_context(remora.open(place.uri))]
        kernel = _empty(devices[0])
        for count in doublings(place.most["sessions"]):
            devices += (stack.enter_context(remora.open(place.uri, retry=10)) for _ in range(count - len(devices)))
            points.append((count, _latency_us(devices[0], kernel, place.samples)))
            place.step(count / place.most["sessions"])
    yield Curve("sessions", place.line, tuple(points))


def recorded_commands(place: Place) -> Iterator[Curve]:
    """Executing a recording of so many empty dispatches, and waiting for it."""
    points = list[tuple[float, float]]()
    with remora.open(place.uri) as device:
        kernel = _empty(device)
        for count in decades(1, place.most["commands"]):
            with device.command_buffer() as commands:
                for _ in range(count):
                    commands.dispatch(kernel, ONE, ())
            play = each(lambda commands=commands: device.queue.execute(commands).wait())  # type: ignore[misc]
            play(3)
            points.append((count, median(play(max(5, min(place.samples, 200_000 // count)))) / 1e3))
            commands.close()
            place.step(count / place.most["commands"])
    yield Curve("commands", place.line, tuple(points))


def transfer_sizes(place: Place) -> Iterator[Curve]:
    """An upload, and a download, of so many bytes."""
    ups, downs = list[tuple[float, float]](), list[tuple[float, float]]()
    sizes = [1 << power for power in range(0, place.most["bytes"].bit_length(), 3)]
    with remora.open(place.uri) as device:
        for size in (size for size in sizes if size * MEMORY_SHARE <= available()):
            memory = memoryview(bytearray(size))
            with device.upload(memory) as buffer:
                count = max(3, min(place.samples // 4, 256 * MIB // size))
                for points, call in ((ups, buffer.write), (downs, buffer.read_into)):
                    move = each(lambda call=call, memory=memory: call(memory))  # type: ignore[misc]
                    move(1)
                    points.append((size, median(move(count)) / 1e3))
            place.step(size / place.most["bytes"])
    yield Curve("bytes", f"{place.line} upload", tuple(ups))
    yield Curve("bytes", f"{place.line} download", tuple(downs))


#: Panel -> title, what is counted, what costs, and who measures it.
CURVES: dict[str, tuple[str, str, Callable[[Place], Iterator[Curve]]]] = {
    "buffers": ("dispatch + wait", "live buffers", live_buffers),
    "sessions": ("dispatch + wait", "open sessions", live_sessions),
    "commands": ("execute a recording + wait", "recorded dispatches", recorded_commands),
    "bytes": ("transfer", "bytes", transfer_sizes),
}


def grow(quick: bool, progress: Callable[[str, float], None]) -> tuple[Curve, ...]:
    """All curves on each carrier between processes. `progress` gets a title and the share that is done, 0 to 1."""
    curves, parts = list[Curve](), len(CURVES) * len(CARRIERS)
    flags = ("--session-resources", str(2 * FULL["buffers"]))
    with TemporaryDirectory(prefix="remora-bench-") as folder:
        binds = [f"{carrier}://{'127.0.0.1:0' if carrier == 'tcp' else f'{folder}/{carrier}.sock'}" for carrier in CARRIERS]
        with ServerProcess(bind=binds, max_sessions=2 * FULL["sessions"], flags=flags) as server:
            for number, (panel, carrier) in enumerate(product(CURVES, CARRIERS)):
                title, what, measured = CURVES[panel]

                def step(share: float, begin: int = number, name: str = f"{title}: {what}, {carrier}") -> None:
                    progress(name, (begin + share) / parts)

                step(0)
                curves += measured(Place(carrier, server.uris[CARRIERS.index(carrier)], quick, step))
    return tuple(curves)
