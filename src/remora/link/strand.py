"""One connection of the bulk lane: spans out and bytes in, in steps that leave room for small commands."""

from __future__ import annotations

from collections.abc import Callable

from remora.carriers.carrier import Carrier, Span
from remora.link.courtesy import Courtesy

__all__ = ["Strand"]

#: Seconds that a receiver waits for a header before it looks around.
LOOK = 0.1


class Strand:
    """A carrier with manners. One thread puts, one reads. `index` 0 is the strand that carries more than DATA."""

    def __init__(self, index: int, carrier: Carrier, activity: Callable[[], int]) -> None:
        self.index = index
        self.carrier = carrier
        self._sending = Courtesy(activity)
        self._receiving = Courtesy(activity)

    def put(self, spans: list[Span]) -> None:
        """Send the spans, the payload in pieces if small commands want it so. Raises the carrier's failure."""
        send_all, courtesy = self.carrier.send_all, self._sending
        while (large := next((at for at, span in enumerate(spans) if len(span) > courtesy.step(len(span))), -1)) >= 0:
            payload = memoryview(spans[large])
            size = courtesy.step(len(payload))
            send_all(*spans[:large], payload[:size])
            spans = [payload[size:], *spans[large + 1 :]]
            courtesy.give_way()
        send_all(*spans)
        courtesy.give_way()

    def read(self, into: memoryview) -> None:
        """Fill `into`. Raises the carrier's failure."""
        receive_into, courtesy = self.carrier.receive_into, self._receiving
        while len(into):
            into = into[receive_into(into[: courtesy.step(len(into))]) :]
            courtesy.give_way()

    def read_header(self, header: memoryview, ended: Callable[[], bool]) -> bool:
        """Fill `header`; False when the lane has `ended`. Raises the carrier's failure.

        Between frames this polls. A thread asleep in recv on a unix socket is woken whenever the peer reads what this side sends.
        """
        receive_into, rest = self.carrier.receive_into, header
        while len(rest):
            if ended():
                return False
            rest = rest[receive_into(rest, 0) or receive_into(rest, LOOK) :]
        return True
