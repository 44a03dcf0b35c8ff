"""A client that writes frames by hand, for what the driver never sends."""

import contextlib
from time import monotonic

from remora.base.ids import ResourceType
from remora.base.uri import parse_uri
from remora.hal.manifest import encode_info
from remora.link.connect import connect_session
from remora.session.events import Advanced, Failed
from remora.session.state import Lane
from remora.wire.bootstrap import CAPABILITY_BULK, Hello
from remora.wire.bulk import COMPLETE, CREDIT, DATA, START, decode_bulk, encode_abort, encode_bulk
from remora.wire.executable_calls import ExecutableLoad

#: Seconds after which a wait has failed.
LONG = 20.0


class RawClient:
    """A session on three bare carriers. `axes` are the queues of device 0; `events` is everything that came."""

    def __init__(self, uri, capabilities=0):
        hello = Hello(CAPABILITY_BULK | capabilities, client="raw")
        self.session, self.carriers = connect_session(parse_uri(uri).carrier, hello, LONG)
        self.axes = [axis for axis, _ in self.session.accepted.axes]
        self.target = self.session.accepted.devices[0].targets
        self.events = []

    def close(self):
        for carrier in self.carriers.values():
            carrier.close()

    def command(self, queue, op, body=b"", waits=()):
        """Write a command to a queue's axis; returns its epoch."""
        return self.session.command(self.axes[queue], op, waits, body)

    def send(self, *lanes):
        for lane in lanes or (Lane.CONTROL, Lane.QUEUE):
            if self.session.pending(lane):
                self.carriers[lane].send_all(self.session.take(lane), timeout=LONG)

    def until(self, lane, wanted):
        """Read a lane until `wanted(event)` holds for an event, which may be here already; returns that event."""
        for event in self.events:
            if wanted(event):
                return event
        deadline = monotonic() + LONG
        while True:
            lease = self.carriers[lane].receive(max(0.0, deadline - monotonic()))
            assert lease is not None, f"nothing more came on the {lane.name} lane; so far: {self.events}"
            with lease:
                fresh = self.session.receive(lane, lease.view)
            self.events += fresh
            for event in fresh:
                if wanted(event):
                    return event

    def advanced(self, queue, epoch):
        """Wait until a queue's axis has come to `epoch`."""
        axis = self.axes[queue]
        return self.until(Lane.QUEUE, lambda event: isinstance(event, Advanced) and event.axis == axis and event.epoch >= epoch)

    def failed(self, lane=Lane.CONTROL):
        """Wait for the end of the session; returns its cause."""
        return self.until(lane, lambda event: isinstance(event, Failed)).error

    def progress(self, queue):
        """(epoch, failure) of every ADVANCE of a queue's axis so far."""
        return [(e.epoch, e.failure) for e in self.events if isinstance(e, Advanced) and e.axis == self.axes[queue]]

    # -- loading through bulk, step by step -----------------------------------------------------------------------------------

    def begin_load(self, bundle, transfer_id=1):
        """Ask for an executable whose artifact is yet to come; returns (provisional id, artifact) once the server knows."""
        target = next(target for target in bundle.targets if tuple(target) in self.target)
        artifact = bundle.artifact(target)
        resource = self.session.provisional(ResourceType.EXECUTABLE)
        body = ExecutableLoad(resource, 0, tuple(target), encode_info(bundle.info), len(artifact), b"", transfer_id)
        self.session.request(body)
        self.send(Lane.CONTROL)
        header = bytearray(24)
        self.read_bulk(header)
        frame = decode_bulk(header)
        assert (frame.kind, frame.transfer_id) == (CREDIT, transfer_id)
        return resource, artifact

    def read_bulk(self, into):
        view = memoryview(into)
        while view:
            count = self.carriers[Lane.BULK].receive_into(view, LONG)
            assert count, "nothing came on the bulk lane"
            view = view[count:]

    def send_artifact(self, data, transfer_id=1):
        """Send what `begin_load` announced; it must be less than a chunk."""
        frames = (
            encode_bulk(START, transfer_id, len(data)),
            encode_bulk(DATA, transfer_id, 0, len(data)) + data,
            encode_bulk(COMPLETE, transfer_id, len(data)),
        )
        self.carriers[Lane.BULK].send_all(b"".join(frames), timeout=LONG)

    def abort_artifact(self, error, transfer_id=1):
        self.carriers[Lane.BULK].send_all(encode_abort(transfer_id, error), timeout=LONG)


@contextlib.contextmanager
def raw_client(uri, capabilities=0):
    client = RawClient(uri, capabilities)
    try:
        yield client
    finally:
        client.close()
