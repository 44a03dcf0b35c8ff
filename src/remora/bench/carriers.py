"""The carriers alone, as small commands use them: a few bytes there and a few back, beside an echo of plain sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

from remora.bench.context import CARRIERS, REPLY_BYTES, Bench
from remora.bench.floors import RawEcho
from remora.bench.measure import Subject, alternate, each, paired_ratio
from remora.bench.placement import PLACEMENTS
from remora.bench.processes import Companion
from remora.bench.report import Row, Target
from remora.carriers.registry import connect

__all__ = ["CarrierEcho", "alone"]

#: Bytes of the smallest dispatch.
MESSAGE_BYTES = 56
ECHO_RATIO = Target(1.3, of="ratio")
#: Microseconds of a round trip through shared memory.
SLEEPING, LOOKING = Target(15), Target(8)


class CarrierEcho:
    """Sends `size` bytes through a carrier and gets `reply` bytes back. `close()` it."""

    def __init__(self, address: str, size: int, reply: int) -> None:
        self._carrier = connect(address)
        self._carrier.activate()
        self._message, self._reply = bytes(size), reply

    def round_trip(self) -> None:
        """One message out, one reply back."""
        carrier, owed = self._carrier, self._reply
        carrier.send(self._message)
        while owed:
            lease = carrier.receive()
            assert lease is not None  # without a timeout it waits
            owed -= len(lease.view)
            lease.release()

    def close(self) -> None:
        """Hang up."""
        self._carrier.close()


def alone(bench: Bench) -> list[Row]:
    """Each carrier with both placements: looking for bytes before it sleeps, as it does by itself, and sleeping at once."""
    rows: list[Row] = []
    step = bench.steps(len(PLACEMENTS) * len(CARRIERS))
    with Companion("carriers", bench.directory, str(MESSAGE_BYTES), str(REPLY_BYTES)) as companion:
        for placement in PLACEMENTS:
            for address in companion.ready.split():
                rows += _pair(bench, companion.pid, address, placement)
                step()
    return rows


def _pair(bench: Bench, pid: int, address: str, placement: str) -> Iterator[Row]:
    carrier = address.partition(":")[0]
    with ExitStack() as stack:
        looking, sleeping = (
            stack.enter_context(closing(CarrierEcho(f"{address}{query}", MESSAGE_BYTES, REPLY_BYTES)))
            for query in ("", "?spin_us=0")
        )
        raw = stack.enter_context(closing(RawEcho(bench.floor_address(carrier), MESSAGE_BYTES, REPLY_BYTES)))
        for echo in (looking, sleeping, raw):
            echo.round_trip()  # the threads that answer are there
        stack.enter_context(PLACEMENTS[placement](pid, bench.floor.pid))
        subjects = [
            Subject("raw", each(raw.round_trip), bench.floor.pid),
            Subject("looks", each(looking.round_trip), pid),
            Subject("sleeps", each(sleeping.round_trip), pid),
        ]
        floor, *ours = alternate(subjects, bench.pick(3, 9), bench.pick(100, 1000), lambda: None)
    for run, what, target in zip(ours, ("looks first", "sleeps at once"), (LOOKING, SLEEPING), strict=True):
        detail = {"ours": run.detail(), "floor": floor.detail()}
        values = run.detail()["p50_us"], floor.detail()["p50_us"], paired_ratio(run, floor)
        yield Row(
            f"{carrier} carrier alone, {placement}, {what}", "us", *values, target if carrier == "shm" else ECHO_RATIO, detail
        )
