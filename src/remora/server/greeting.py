"""A connection before it belongs to a session: one bootstrap frame, within a deadline, and nothing is trusted (H03, H06)."""

from __future__ import annotations

from contextlib import suppress

from remora.carriers.carrier import Carrier
from remora.errors import Error
from remora.wire.bootstrap import Bootstrap, Reject, decode_bootstrap, encode_bootstrap
from remora.wire.frame import FrameSplitter

__all__ = ["MAX_BOOTSTRAP", "Greeting"]

#: The most a HELLO or JOIN can have.
MAX_BOOTSTRAP = 4096


class Greeting:
    """Collects the first frame of an accepted connection. `frame` holds its bytes once `poll` returned the message."""

    def __init__(self, carrier: Carrier, deadline: float) -> None:
        self.carrier = carrier
        self.deadline = deadline
        self.frame = b""
        self._splitter = FrameSplitter("bootstrap", MAX_BOOTSTRAP)

    def poll(self) -> Bootstrap | None:
        """The message, or None until it is complete. Raises PeerError for anything that is none, BrokenError when the peer left."""
        lease = self.carrier.receive(0)
        if lease is None:
            return None
        with lease:
            data, end = self._splitter.feed(lease.view)
            self.frame = bytes(data[:end])
        return decode_bootstrap(memoryview(self.frame)) if end else None

    def refuse(self, error: Error) -> None:
        """Tell the peer why and close."""
        with suppress(Error):
            self.carrier.send(encode_bootstrap(Reject(error)))
        self.carrier.close()
