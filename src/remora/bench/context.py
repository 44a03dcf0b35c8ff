"""What every case has at hand: the peers, how much to measure, and where to say how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from remora.bench.processes import Peer
from remora.bench.report import Target

__all__ = ["CARRIERS", "ECHO_RATIO", "MIB", "REPLY_BYTES", "Bench"]

CARRIERS = ("tcp", "unix")
ECHO_RATIO = Target(1.5, of="ratio")
MIB = 1 << 20
#: Bytes of an ADVANCE.
REPLY_BYTES = 24


@dataclass(frozen=True, slots=True)
class Bench:
    """What a case needs: the peers, how much to measure, and where to say how far it is (0 to 1)."""

    quick: bool
    floor: Peer
    server: Peer
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
        return _address(self.floor, carrier)

    def uri(self, carrier: str) -> str:
        """Where remora answers."""
        return "remote-" + _address(self.server, carrier)


def _address(peer: Peer, carrier: str) -> str:
    return next(address for address in peer.ready.split() if address.startswith(carrier))
