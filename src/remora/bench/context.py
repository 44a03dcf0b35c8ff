"""What every case has at hand: the other processes, how much to measure, and where to say how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from remora.bench.floors import RawMemory, RawStream
from remora.bench.processes import Companion
from remora.bench.report import Target
from remora.testing.server import ServerProcess

__all__ = ["CARRIERS", "ECHO_RATIO", "MIB", "REPLY_BYTES", "Bench"]

CARRIERS = ("tcp", "unix", "shm")
ECHO_RATIO = Target(1.5, of="ratio")
MIB = 1 << 20
#: Bytes of an ADVANCE.
REPLY_BYTES = 24


@dataclass(frozen=True, slots=True)
class Bench:
    """What a case needs: the other processes, how much to measure, and where to say how far it is (0 to 1)."""

    quick: bool
    floor: Companion
    server: ServerProcess
    directory: str
    """Where sockets of the bench may be."""
    step: Callable[[float], None]

    def pick(self, quick: int, full: int) -> int:
        """The count for this kind of run."""
        return quick if self.quick else full

    def steps(self, total: int) -> Callable[[], None]:
        """A function to call `total` times."""
        done = iter(range(1, total + 1))
        return lambda: self.step(next(done, total) / total)

    def floor_address(self, carrier: str) -> str:
        """Where the plain sockets answer."""
        return next(address for address in self.floor.ready.split() if address.startswith(carrier))

    def raw_stream(self, carrier: str, total: int) -> RawStream | RawMemory:
        """A floor that moves `total` bytes at a time. `close()` it."""
        address = self.floor_address(carrier)
        return RawMemory(address, total) if carrier == "shm" else RawStream(address, total)

    def uri(self, carrier: str) -> str:
        """Where remora answers."""
        return next(uri for uri in self.server.uris if uri.startswith(f"remote-{carrier}"))
