"""Steps that a raw client of these tests takes."""

from remora.session.events import ResultReceived
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.bulk import CHUNK, COMPLETE, DATA, START, encode_bulk

__all__ = ["blocked", "bytes_of", "contents", "deliver", "fill", "frames_of", "upload"]


def fill(raw, queue, buffer, size, byte, waits=()):
    """Write a FILL; returns its epoch."""
    return raw.command(queue, commands.FILL, commands.encode_fill(buffer, 0, size, byte), waits)


def upload(raw, queue, buffer, size, transfer_id, waits=()):
    """Write an UPLOAD, whose bytes are to be delivered; returns its epoch."""
    return raw.command(queue, commands.UPLOAD, commands.encode_transfer(buffer, 0, size, transfer_id), waits)


def blocked(raw, queue, transfer_id):
    """Stop a queue with an UPLOAD whose bytes are not sent; returns its epoch. `deliver(raw, transfer_id, b"x")` lets it go."""
    return upload(raw, queue, raw.session.allocate(0, 1), 1, transfer_id)


def frames_of(transfer_id, data):
    """The frames that carry `data`, in order."""
    parts = [encode_bulk(START, transfer_id, len(data))]
    for offset in range(0, len(data), CHUNK):
        chunk = data[offset : offset + CHUNK]
        parts.append(encode_bulk(DATA, transfer_id, offset, len(chunk)) + chunk)
    return [*parts, encode_bulk(COMPLETE, transfer_id, len(data))]


def deliver(raw, transfer_id, data):
    """Send the bytes of an UPLOAD."""
    raw.carriers[Lane.BULK].send_all(b"".join(frames_of(transfer_id, data)), timeout=20)


def contents(raw, queue, buffer, size, offset=0, waits=()):
    """The bytes of a buffer, read through a queue; at most 64 KiB."""
    epoch = raw.command(queue, commands.READ, commands.encode_range(buffer, offset, size), waits)
    raw.send()
    axis = raw.axes[queue]
    result = raw.until(Lane.QUEUE, lambda event: isinstance(event, ResultReceived) and (event.axis, event.epoch) == (axis, epoch))
    return bytes(result.data)


def bytes_of(raw, queue, buffer, size):
    """All bytes of a buffer of any size."""
    step = commands.MAX_INLINE
    return b"".join(contents(raw, queue, buffer, min(step, size - at), at) for at in range(0, size, step))
