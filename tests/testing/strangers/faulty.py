"""Drivers and a carrier of a stranger, each with one defect: `faulty://DEFECT`. The suites must find every one of them.

Beside them `bare://`: a driver without defects, and with nothing that a driver may lack: no targets, one queue.
"""

from dataclasses import replace

from remora.carriers import loopback
from remora.drivers.null.device import INFO, NullDevice
from remora.drivers.null.queue import NullQueue


class ShortFill(NullQueue):
    """A fill that leaves the last byte out."""

    def _fill(self, buffer, pattern, wait, signal):
        if buffer.size > len(pattern):
            buffer = buffer.view(0, buffer.size - len(pattern))
        return super()._fill(buffer, pattern, wait, signal)


class EagerUpdate(NullQueue):
    """An update that does not wait for what it was told to wait for."""

    def _update(self, buffer, offset, data, wait, signal):
        return super()._update(buffer, offset, data, (), signal)


DEFECTS = {"fill": ShortFill, "wait": EagerUpdate}


class FaultyDevice(NullDevice):
    def __init__(self, uri, queue):
        super().__init__(uri)
        self._queues = tuple(queue(self, ordinal) for ordinal in range(INFO.queue_count))


class LeakyDevice(NullDevice):
    """A closed buffer stays on the books."""

    most = 0

    def statistics(self):
        counted = super().statistics()
        self.most = max(self.most, counted.buffers)
        return replace(counted, buffers=self.most)


class BareDevice(NullDevice):
    def __init__(self, uri):
        super().__init__(uri)
        self.info = replace(INFO, targets=(), queue_count=1)
        self._queues = self._queues[:1]


def open_devices(uri):
    if uri.scheme == "bare":
        return (BareDevice(str(uri)),)
    if uri.place == "leak":
        return (LeakyDevice(str(uri)),)
    return (FaultyDevice(str(uri), DEFECTS[uri.place]),)


def listen(uri, *, keepalive, backlog):
    listener = loopback.listen(uri, keepalive=keepalive, backlog=backlog)
    listener.address = listener.address.replace("loopback", uri.scheme)
    return listener


def connect(uri, *, timeout, keepalive):
    """A carrier that sends its last span backwards."""
    carrier = loopback.connect(uri, timeout=timeout, keepalive=keepalive)
    send_all = carrier.send_all
    carrier.send_all = lambda *spans, **options: send_all(*spans[:-1], bytes(spans[-1])[::-1], **options)
    return carrier


adopt = loopback.adopt
