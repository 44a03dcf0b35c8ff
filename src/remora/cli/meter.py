"""What the demo measures: for each step the time, the bytes that crossed the connection, the round trips, and the rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from remora.base.snapshot import LinkStatistics
from remora.cli.show import CONSOLE, amount, duration, table
from remora.drivers.remote.device import RemoteDevice
from remora.hal.buffer import Buffer
from remora.hal.device import Device
from remora.hal.semaphore import Timepoint

__all__ = ["Meter"]

#: Bytes between two steps of a progress bar.
CHUNK_BYTES = 4 << 20
REPEATS = 5
TIMEOUT = 300.0
EMPTY = LinkStatistics(0, 0, 0, 0, 0)
COLUMNS = ("step", "time", "rate", "sent", "received", "round trips")


@dataclass(frozen=True, slots=True)
class Row:
    """One step. `seconds` is of all its runs, or of the fastest one; `before` are the connection's counts at its start."""

    name: str
    seconds: float
    rate: str
    before: LinkStatistics


class Meter:
    """Measures steps on one remote device, which is set once it is there."""

    def __init__(self) -> None:
        self.device: RemoteDevice | None = None
        self.rows: list[Row] = []
        self._begin = perf_counter()

    @contextmanager
    def measure(self, name: str, size_bytes: int = 0) -> Iterator[None]:
        """One step; `size_bytes` gives it a rate."""
        before, begin = self._counts(), perf_counter()
        yield
        seconds = perf_counter() - begin
        self.rows.append(Row(name, seconds, amount(size_bytes / seconds, "B/s") if size_bytes else "", before))

    def repeat(self, name: str, submit: Callable[[], Timepoint], work: int, unit: str) -> None:
        """Run a kernel REPEATS times, each waited for, and keep the fastest time; `work` in a second is the rate."""
        before, times = self._counts(), []
        for _ in range(REPEATS):
            begin = perf_counter()
            submit().wait(TIMEOUT)
            times.append(perf_counter() - begin)
        fastest = min(times)
        self.rows.append(Row(name, fastest, amount(work / fastest, unit), before))

    def upload(self, name: str, device: Device, *arrays: Any) -> Sequence[Buffer]:
        """A buffer on the device with the contents of each array."""
        buffers = [device.allocate(array.nbytes) for array in arrays]
        with self.measure(name, sum(array.nbytes for array in arrays)):
            for buffer, array in zip(buffers, arrays, strict=True):
                self._transfer(name, array, partial(device.queue.update, buffer))
        return buffers

    def download(self, name: str, buffer: Buffer, array: Any) -> None:
        """Fill the array from the buffer."""
        with self.measure(name, array.nbytes):
            self._transfer(name, array, partial(buffer.device.queue.read, buffer))

    def _transfer(self, name: str, array: Any, submit: Callable[[Any, int], Timepoint]) -> None:
        """Move an array piece by piece, all submitted at once; on a terminal a bar follows."""
        view = memoryview(array).cast("B")
        pieces = [(view[offset : offset + CHUNK_BYTES], offset) for offset in range(0, view.nbytes, CHUNK_BYTES)]
        with follow(name, view.nbytes) as advance:
            points = [submit(piece, offset) for piece, offset in pieces]
            if advance is not None:
                for point, (piece, _) in zip(points, pieces, strict=True):
                    point.on_done(partial(advance, piece.nbytes))
            points[-1].wait(TIMEOUT)

    def costs(self) -> list[tuple[Row, int, int, int]]:
        """Each step with its (bytes sent, bytes received, round trips), and a last row for the whole run.

        A step lasts until the next one begins: a sending thread counts its last bytes when the other side may have them already.
        """
        ends = [row.before for row in self.rows[1:]] + [self._counts()]
        whole = Row("whole run", perf_counter() - self._begin, "", EMPTY)
        return [
            (
                row,
                end.bytes_sent - row.before.bytes_sent,
                end.bytes_received - row.before.bytes_received,
                end.round_trips - row.before.round_trips,
            )
            for row, end in zip([*self.rows, whole], [*ends, ends[-1]], strict=True)
        ]

    def print(self) -> None:
        """The table, with a last row for the whole run."""
        cells = [
            (row.name, duration(row.seconds), row.rate, amount(sent, "B"), amount(received, "B"), str(round_trips))
            for row, sent, received, round_trips in self.costs()
        ]
        table(COLUMNS, cells, right=COLUMNS[1:])
        CONSOLE.print(f"Kernels: time and rate of the fastest of {REPEATS} runs, each submitted and waited for.", style="dim")

    def _counts(self) -> LinkStatistics:
        return EMPTY if self.device is None else self.device.link_statistics()


@contextmanager
def follow(name: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal, gone when the block ends: call the function with the bytes that have arrived. None in a pipe."""
    if not CONSOLE.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:<20}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=CONSOLE, transient=True) as bar:
        yield partial(bar.advance, bar.add_task(name, total=total))
