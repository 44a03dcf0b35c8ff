"""Move bytes between two endpoints and parse none of them. The contract is `carrier`, the door is `registry`."""

from remora.carriers.carrier import (
    Budget,
    Capability,
    Carrier,
    CarrierState,
    Keepalive,
    Lease,
    Listener,
    Reservation,
    Span,
    Statistics,
)
from remora.carriers.registry import adopt, connect, listen

__all__ = [
    "Budget",
    "Capability",
    "Carrier",
    "CarrierState",
    "Keepalive",
    "Lease",
    "Listener",
    "Reservation",
    "Span",
    "Statistics",
    "adopt",
    "connect",
    "listen",
]
