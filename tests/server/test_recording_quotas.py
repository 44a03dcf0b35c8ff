"""H07, H18: how many recordings a session may have stored, and how many bytes of them."""

from time import monotonic

import pytest
from tests.remote.raw import LONG, raw_client
from tests.server.test_quotas import parsed

import remora
from remora.base.ids import ResourceType
from remora.errors import BusyError, DeviceError, Error, Status, UsageError
from remora.hal.semaphore import Semaphore
from remora.server.options import SessionLimits
from remora.server.quotas import Quotas, size_text
from remora.server.stored import Stored
from remora.session.events import Responded, ResultReceived
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.command_buffer import RecordedFill, Ref, encode_stream
from remora.wire.command_buffer_calls import MAX_INLINE_STREAM, CommandBufferUpload
from remora.wire.execute import encode_execute

FILL_BYTES = 48


def record(device, buffer, count=1):
    """A recording of so many fills, of which the server's answer is here."""
    with device.command_buffer() as commands:
        for turn in range(count):
            commands.fill(buffer, bytes([turn % 251 + 1]))
    deadline = monotonic() + LONG
    while not commands.prepared._answered:
        assert monotonic() < deadline
        device.event().query()  # a round trip
    return commands


def settle(device):
    """Everything that was closed is released, and the server knows."""
    device.host.flush_garbage()
    device.queue.wait_idle(LONG)


def test_h07_h18_recordings_beyond_the_quota_are_refused_by_name_and_come_back_on_release(serve, mode):
    server = serve("--session-recordings", "2", **mode)
    with remora.open(server.uri) as device, device.allocate(8) as buffer:
        kept = [record(device, buffer, count) for count in (7, 9)]
        refused = record(device, buffer)
        with pytest.raises(BusyError, match=r"quota of recordings: asked for 1, 2 of 2 are in use.*--session-recordings") as caught:
            device.queue.execute(refused)
        assert caught.value.code is Status.RESOURCE_EXHAUSTED
        for commands, byte in zip(kept, (b"\x07", b"\x09"), strict=True):
            device.queue.execute(commands).wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == byte * 8
        refused.close()
        kept[0].close()
        for _ in range(5):
            settle(device)
            again = record(device, buffer)
            device.queue.execute(again).wait(LONG)
            again.close()
        with device.command_buffer(one_shot=True) as along:  # it is not stored
            along.fill(buffer, b"o")
        device.queue.execute(along).wait(LONG)
        assert bytes(buffer.read(timeout=LONG)) == b"o" * 8


def test_h07_h18_bytes_of_recordings_beyond_the_quota_are_refused(serve, mode):
    """By the size of what is uploaded, inside a request or over bulk."""
    large = MAX_INLINE_STREAM // FILL_BYTES + 1
    size = large * FILL_BYTES
    server = serve("--session-recording-bytes", "60KiB", **mode)
    with remora.open(server.uri) as device, device.allocate(8) as buffer:
        first = record(device, buffer, large)
        for count in (large, large - 1):
            refused = record(device, buffer, count)
            with pytest.raises(BusyError) as caught:
                device.queue.execute(refused)
            asked = f"asked for {size_text(count * FILL_BYTES)}, {size_text(size)} of 60 KiB are in use"
            assert f"the session's quota of bytes of recordings: {asked}" in str(caught.value)
            assert "--session-recording-bytes" in str(caught.value)
            refused.close()
        small = record(device, buffer, 5)
        for commands in (first, small):
            device.queue.execute(commands).wait(LONG)
        assert bytes(buffer.read(timeout=LONG)) == b"\x05" * 8
        first.close()
        settle(device)
        device.queue.execute(record(device, buffer, large)).wait(LONG)


def test_h07_what_is_executed_before_the_refusal_is_known_fails_its_queue_only(serve):
    server = serve("--session-recordings", "1")
    with remora.open(server.uri) as device, device.allocate(8) as buffer:
        first = record(device, buffer, 3)
        with device.command_buffer() as refused:
            refused.fill(buffer, b"x")
        with pytest.raises(BusyError, match="quota of recordings"):
            device.queue.execute(refused).wait(LONG)
        device.queues[1].execute(first).wait(LONG)
        into = bytearray(8)
        device.queues[1].read(buffer, into).wait(LONG)
        assert into == b"\x03" * 8


def test_h07_the_quota_of_recordings_is_each_sessions_own(serve, mode):
    server = serve("--session-recordings", "1", **mode)
    with remora.open(server.uri) as one, remora.open(server.uri) as other:
        for device in (one, other):
            buffer = device.allocate(8)
            first, second = record(device, buffer), record(device, buffer)
            device.queue.execute(first).wait(LONG)
            with pytest.raises(BusyError, match="quota of recordings"):
                device.queue.execute(second)


# -- by hand ------------------------------------------------------------------------------------------------------------------


class Uploads:
    """Recordings of a raw client; `buffer` has 16 bytes."""

    def __init__(self, raw):
        self.raw = raw
        self.buffer = raw.session.allocate(0, 16)

    def upload(self, stream=None, transfer_id=0, size=0):
        """(provisional id, request id)."""
        stream = encode_stream([RecordedFill(Ref(self.buffer, 0, 16), b"r")]) if stream is None else stream
        resource = self.raw.session.provisional(ResourceType.COMMAND_BUFFER)
        request = self.raw.session.request(CommandBufferUpload(resource, 0, 0, size or len(stream), stream, transfer_id))
        self.raw.send()
        return resource, request

    def answer(self, request):
        return self.raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == request).body

    def taken(self):
        """Whether there is room for one more, which is given back."""
        resource, request = self.upload()
        answer = self.answer(request)
        self.release(resource)
        return not isinstance(answer, Error)

    def release(self, *resources):
        self.raw.session.release(list(resources))
        epoch = self.raw.command(1, commands.READ, commands.encode_range(self.buffer, 0, 16))
        self.raw.send()
        self.raw.until(Lane.QUEUE, lambda event: isinstance(event, ResultReceived) and event.epoch == epoch)


@pytest.fixture
def uploads(serve):
    server = serve("--session-recordings", "1")
    with raw_client(server.uri) as raw:
        yield Uploads(raw)


def test_h07_a_released_recording_counts_until_its_executions_are_done(uploads):
    raw = uploads.raw
    resource, request = uploads.upload()
    uploads.answer(request)
    busy = raw.session.allocate(0, 1 << 17)
    held = raw.command(0, commands.UPLOAD, commands.encode_transfer(busy, 0, 1 << 17, 5))
    executions = [raw.command(0, commands.EXECUTE, encode_execute(resource, (), (), b"")) for _ in range(3)]
    uploads.release(resource)
    assert not uploads.taken()
    raw.send_artifact(bytes(1 << 17), 5)
    assert raw.advanced(0, executions[-1]).failure is None
    assert held < executions[0]
    assert uploads.taken()


def test_h07_an_execution_that_fails_gives_its_place_back(uploads):
    raw = uploads.raw
    resource, request = uploads.upload()
    uploads.answer(request)
    busy = raw.session.allocate(0, 1 << 17)
    held = raw.command(0, commands.UPLOAD, commands.encode_transfer(busy, 0, 1 << 17, 5))
    raw.command(0, commands.EXECUTE, encode_execute(resource, (), (), b""))
    uploads.release(resource)
    assert not uploads.taken()
    raw.abort_artifact(DeviceError("the disk is on fire"), 5)
    assert "the disk is on fire" in str(raw.advanced(0, held).failure)
    deadline = monotonic() + LONG
    while not uploads.taken():  # the upload's failure is told before the execution has failed with it
        assert monotonic() < deadline


@pytest.mark.parametrize("what", ["bad stream", "bad record", "bad device", "aborted"])
def test_h07_a_recording_that_could_not_be_stored_costs_no_quota(uploads, what):
    raw = uploads.raw
    for turn in range(3):
        if what == "bad stream":
            _, request = uploads.upload(b"\x99" * 8)
        elif what == "bad record":
            _, request = uploads.upload(encode_stream([RecordedFill(Ref(uploads.buffer, 8, 16), b"r")]))
        elif what == "bad device":
            resource = raw.session.provisional(ResourceType.COMMAND_BUFFER)
            request = raw.session.request(CommandBufferUpload(resource, 7, 0, 0))
            raw.send()
        else:
            _, request = uploads.upload(b"", 2 * turn + 5, 1 << 17)
            raw.abort_artifact(DeviceError("the disk is on fire"), 2 * turn + 5)
        answer = uploads.answer(request)
        assert isinstance(answer, Error)
        assert "quota" not in str(answer)
    assert uploads.taken()


def test_h07_one_that_waits_for_its_buffer_counts(uploads):
    """And what is refused meanwhile leaves nothing: its id fails, and a transfer that was to bring it ends."""
    raw = uploads.raw
    missing = raw.session.provisional(ResourceType.BUFFER)
    resource, request = uploads.upload(encode_stream([RecordedFill(Ref(missing, 0, 4), b"h")]))
    refused, denied = uploads.upload(b"", 5, 1 << 17)
    assert "quota of recordings: asked for 1, 1 of 1 are in use" in str(uploads.answer(denied))
    epoch = raw.command(1, commands.EXECUTE, encode_execute(refused, (), (), b""))
    raw.send()
    assert "quota of recordings" in str(raw.advanced(1, epoch).failure)
    assert not [event for event in raw.events if isinstance(event, Responded) and event.id == request]
    assert resource != refused


# -- without a server ---------------------------------------------------------------------------------------------------------


def test_h07_a_recording_counts_once_in_each_quota_and_holds_are_counted():
    quotas = Quotas(SessionLimits(recordings=1, recording_bytes=100))
    timeline = Semaphore()
    stored = Stored(quotas, 60)
    stored.executed(timeline.at(1))
    stored.executed(timeline.at(0))
    stored.executed(timeline.at(2))
    stored.let_go()
    timeline.signal(1)
    assert (quotas.recordings.used, quotas.recording_bytes.used) == (1, 60)
    with pytest.raises(BusyError, match="quota of recordings"):
        Stored(quotas, 1)
    timeline.fail(DeviceError("gone"))
    assert (quotas.recordings.used, quotas.recording_bytes.used) == (0, 0)
    with pytest.raises(BusyError, match="quota of bytes of recordings: asked for 101 B, 0 B of 100 B"):
        Stored(quotas, 101)
    assert (quotas.recordings.used, quotas.recording_bytes.used) == (0, 0)
    Stored(quotas, 100)


def test_h07_flags_of_recordings():
    limits, _ = parsed("--session-recordings", "3", "--session-recording-bytes", "2MiB")
    assert (limits.recordings, limits.recording_bytes) == (3, 2 << 20)
    assert parsed()[0] == SessionLimits()
    for words, message in (
        (("--session-recordings", "0"), "--session-recordings 0: give a number from 1"),
        (("--session-recording-bytes", "much"), "--session-recording-bytes: 'much' is no size"),
    ):
        with pytest.raises(UsageError, match=message):
            parsed(*words)
