"""H18: command buffers over a link: what they cost on the wire, and streams that no driver sends."""

import pytest
from tests.remote.raw import LONG, raw_client

from remora import Patch, Slot, samples
from remora.base.ids import ResourceType, make_id
from remora.errors import BusyError, DeviceError, NotFoundError, PeerError, Status, UsageError
from remora.hal.manifest import encode_info
from remora.session.events import Responded, ResultReceived
from remora.session.state import Lane
from remora.testing.server import SharedServer
from remora.wire import commands
from remora.wire.bulk import COMPLETE, DATA, START, encode_bulk
from remora.wire.command_buffer import (
    RecordedCopy,
    RecordedDispatch,
    RecordedEvent,
    RecordedFill,
    RecordedIndirect,
    RecordedLabel,
    RecordedUpdate,
    Ref,
    encode_stream,
)
from remora.wire.command_buffer_calls import MAX_INLINE_STREAM, CommandBufferUpload
from remora.wire.control import MAX_REQUESTS
from remora.wire.executable_calls import ExecutableLoad
from remora.wire.execute import MAX_EXECUTE, Announced, Changed, encode_announced, encode_execute, encode_payload

VECTOR = samples.load("vector")
NAMES = [info.name for info in VECTOR.kernels]
FILL_INDEX, EMPTY = NAMES.index("fill_index"), NAMES.index("empty")
COUNT_AND_START = (4).to_bytes(4, "little") + bytes(4)


@pytest.fixture
def kernels(device):
    return device.load(VECTOR)


def step(counts, device):
    """What went over the link since `counts`: (round trips, commands)."""
    now = device.link_statistics()
    return now.round_trips - counts.round_trips, now.commands - counts.commands


# -- what it costs ------------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
@pytest.mark.usefixtures("only_who_waits_reads")
def test_h18_a_model_step_is_one_frame_and_one_advance(device, kernels):
    """A thousand dispatches with patched constants: one command, one send, one round trip."""
    fill_index = kernels["fill_index"]
    with device.allocate(4096) as buffer, device.command_buffer(slots=1) as commands:
        numbers = [commands.dispatch(fill_index, (1, 1, 1), [Slot(0)], (1, turn)) for turn in range(1000)]
        commands.seal()
        device.queue.execute(commands, [buffer]).wait(LONG)
        device.host.flush_garbage()  # a release of what other tests left would be a send of its own
        device.queue.wait_idle(LONG)
        lane = device.host.link.carriers[Lane.QUEUE]  # a heartbeat is a send on the control lane
        for start in (5, 6):
            before, sends = device.link_statistics(), lane.statistics().sends
            patches = {numbers[-1]: Patch(constants=(1, start))}
            device.queue.execute(commands, [buffer], patches).wait(LONG)
            assert (*step(before, device), lane.statistics().sends - sends) == (1, 1, 1)
            assert buffer.read(0, 4, timeout=LONG).cast("I")[0] == start


@pytest.mark.interpreted
@pytest.mark.usefixtures("only_who_waits_reads")
def test_h18_sealing_waits_for_nothing(device, kernels):
    """A recording of any size, a fresh buffer and the execution of both: one round trip, for the answer."""
    device.queue.wait_idle(LONG)
    before = device.link_statistics()
    with device.allocate(4 << 10) as buffer, device.command_buffer() as commands:
        for turn in range(2000):
            commands.dispatch(kernels["fill_index"], (1, 1, 1), [buffer], (1, turn))
        commands.seal()
        device.queue.execute(commands)
        got = buffer.read(timeout=LONG).cast("I")
        assert got[0] == 1999
        assert step(before, device) == (1, 2)


@pytest.mark.interpreted
@pytest.mark.usefixtures("only_who_waits_reads")
def test_h18_a_one_shot_recording_goes_along_whatever_its_size(device):
    device.queue.wait_idle(LONG)
    with device.allocate(1 << 20) as buffer:
        for count in (1, 60, 3000):
            before = device.link_statistics()
            with device.command_buffer(one_shot=True) as commands:
                for turn in range(count):
                    commands.update(buffer.view(turn * 64, 64), bytes([turn % 251]) * 64)
            device.queue.execute(commands).wait(LONG)
            assert step(before, device) == (1, 1)
            commands.close()
            assert bytes(buffer.read((count - 1) * 64, 64, timeout=LONG)) == bytes([(count - 1) % 251]) * 64


def test_h18_a_binding_table_may_be_wide(device):
    """More entries than a frame holds: the table goes over bulk, beside a small command."""
    slots = MAX_EXECUTE // 24 + 2
    with device.upload(bytes(4 * slots)) as buffer, device.command_buffer(slots=slots) as commands:
        for index in (0, 33, slots - 1):
            commands.fill(Slot(index), b"x")
        commands.seal()
        table = [buffer.view(4 * index, 4) for index in range(slots)]
        for _ in range(2):
            device.queue.execute(commands, table).wait(LONG)
        got = bytes(buffer.read(timeout=LONG))
        assert [at for at in range(slots) if got[4 * at : 4 * at + 4] == b"xxxx"] == [0, 33, slots - 1]


def test_h18_every_dispatch_may_be_patched(device, kernels):
    """Patches beyond a frame's size arrive whole and in order."""
    fill_index, count = kernels["fill_index"], 2000
    with device.allocate(4 * count) as buffer, device.command_buffer() as commands:
        numbers = [commands.dispatch(fill_index, (1, 1, 1), [buffer.view(4 * turn, 4)], (1, 0)) for turn in range(count)]
        commands.seal()
        patches = {number: Patch(constants=(1, number + 7)) for number in reversed(numbers)}
        device.queue.execute(commands, (), patches).wait(LONG)
        assert buffer.read(timeout=LONG).cast("I").tolist() == [number + 7 for number in numbers]


@pytest.mark.interpreted
def test_h15_every_recording_is_released_once(device, monkeypatch):
    """Closed before or after the server's answer, or dropped: more of them than requests may be open."""
    released, uploaded = [], set()
    session = device.host.link.session
    release = session.release
    monkeypatch.setattr(session, "release", lambda ids: (released.extend(ids), release(ids)))
    buffer = device.allocate(64)
    for turn in range(2 * MAX_REQUESTS):
        commands = device.command_buffer()
        commands.fill(buffer, bytes([turn % 256]))
        commands.seal()
        uploaded.add(commands.prepared.resource)
        if turn % 3:
            device.queue.execute(commands)
        if turn % 2:
            commands.close()
    del commands
    device.queue.wait_idle(LONG)
    assert bytes(buffer.read(0, 1, timeout=LONG)) == bytes([(2 * MAX_REQUESTS - 1) % 256])
    device.load(VECTOR)  # answered after everything before it
    device.host.flush_garbage()
    assert sorted(released) == sorted(uploaded)


def test_h13_an_execution_is_held_with_its_table(device):
    """It waits here for the host; the table's buffers and the recording may go meanwhile."""
    gate = device.semaphore()
    with device.upload(b"abcd") as source, device.allocate(4) as target:
        commands = device.command_buffer(slots=1)
        commands.copy(Slot(0), target, 4)
        commands.seal()
        done = device.queue.execute(commands, [source], wait=gate.at(1))
        source.close()
        commands.close()
        device.host.flush_garbage()
        gate.signal(1)
        done.wait(LONG)
        assert bytes(target.read(timeout=LONG)) == b"abcd"


# -- streams that no driver sends ---------------------------------------------------------------------------------------------


class Recordings:
    """Uploads and executions of a raw client."""

    def __init__(self, raw):
        self.raw = raw
        self.buffer = raw.session.allocate(0, 16)
        target = next(target for target in VECTOR.targets if tuple(target) in raw.target)
        self.kernels = raw.session.provisional(ResourceType.EXECUTABLE)
        artifact = VECTOR.artifact(target)
        body = ExecutableLoad(self.kernels, 0, tuple(target), encode_info(VECTOR.info), len(artifact), b"", 1001)
        request = raw.session.request(body)
        raw.send()
        raw.send_artifact(artifact, 1001)
        assert not isinstance(self.answer(request), Exception)

    def answer(self, request):
        return self.raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == request).body

    def upload(self, records, slots=0, device=0):
        """(provisional id, request id); sent."""
        stream = records if isinstance(records, bytes) else encode_stream(records)
        resource = self.raw.session.provisional(ResourceType.COMMAND_BUFFER)
        request = self.raw.session.request(CommandBufferUpload(resource, device, slots, len(stream), stream))
        self.raw.send(Lane.CONTROL)
        return resource, request

    def execute(self, resource, table=(), patches=(), stream=b"", queue=0):
        return self.raw.command(queue, commands.EXECUTE, encode_execute(resource, table, patches, stream))

    def finish(self, epoch, queue=0):
        """The failure of an epoch, or None."""
        self.raw.send()
        return self.raw.advanced(queue, epoch).failure

    def contents(self, queue=1):
        """The bytes of `buffer`, read on another queue."""
        epoch = self.raw.command(queue, commands.READ, commands.encode_range(self.buffer, 0, 16))
        self.raw.send()
        result = self.raw.until(Lane.QUEUE, lambda event: isinstance(event, ResultReceived) and event.epoch == epoch)
        return bytes(result.data)

    def fill(self, byte, offset=0, length=16):
        return RecordedFill(Ref(self.buffer, offset, length), byte)

    def launch(self, kernel, bindings=(), constants=b"", grid=(1, 1, 1)):
        return RecordedDispatch(self.kernels, kernel, grid, tuple(bindings), constants)

    def indirect(self, kernel, grid, bindings=(), constants=b""):
        return RecordedIndirect(self.kernels, kernel, grid, tuple(bindings), constants)


@pytest.fixture
def recordings(raw):
    return Recordings(raw)


def test_h18_replay_by_either_id(recordings):
    resource, request = recordings.upload([recordings.fill(b"a"), recordings.launch(EMPTY)])
    canonical = recordings.answer(request).resource
    for name in (resource, canonical):
        assert recordings.finish(recordings.execute(name)) is None
    assert recordings.contents() == b"a" * 16


def test_h18_a_table_and_patches_apply_to_one_execution(recordings):
    other = recordings.raw.session.allocate(0, 16)
    records = [recordings.launch(FILL_INDEX, [Ref(0, 0, 16, 0)], COUNT_AND_START)]
    resource, _ = recordings.upload(records, slots=1)
    patch = Changed(0, None, (2).to_bytes(4, "little") + (9).to_bytes(4, "little"), ((0, recordings.buffer, 8, 8),))
    recordings.execute(resource, [(recordings.buffer, 0, 16)])
    assert recordings.finish(recordings.execute(resource, [(other, 0, 16)], [patch])) is None
    assert memoryview(recordings.contents()).cast("I").tolist() == [0, 1, 9, 10]


@pytest.mark.parametrize("one_shot", [False, True], ids=["uploaded", "along"])
def test_h18_an_indirect_dispatch_reads_its_grid_at_its_turn_and_keeps_it(recordings, one_shot):
    grid = recordings.raw.session.allocate(0, 16)
    records = [
        RecordedUpdate(Ref(grid, 4, 12), (1).to_bytes(4, "little") * 3),
        recordings.indirect(FILL_INDEX, Ref(grid, 4, 12), [Ref(0, 0, 16, 0)], COUNT_AND_START),
    ]
    resource, stream = (0, encode_stream(records)) if one_shot else (recordings.upload(records, slots=1)[0], b"")
    table = [(recordings.buffer, 0, 16)]
    assert recordings.finish(recordings.execute(resource, table, stream=stream)) is None
    assert memoryview(recordings.contents()).cast("I").tolist() == [0, 1, 2, 3]
    recordings.raw.command(0, commands.FILL, commands.encode_fill(recordings.buffer, 0, 16, b"g"))
    patch = Changed(1, (1, 1, 1), None, ())
    failure = recordings.finish(recordings.execute(resource, table, [patch], stream=stream))
    assert "record 1: the grid of fill_index is what its buffer holds" in str(failure)
    assert recordings.contents() == b"g" * 16


def test_h14_a_recording_waits_for_the_grid_that_it_names(recordings):
    """The upload names a buffer that is asked for on the other lane, later."""
    grid = recordings.raw.session.allocate(0, 12)
    resource, request = recordings.upload([recordings.indirect(EMPTY, Ref(grid, 0, 12))])
    recordings.answer(recordings.upload([])[1])
    assert not [event for event in recordings.raw.events if isinstance(event, Responded) and event.id == request]
    assert recordings.finish(recordings.execute(resource)) is None
    assert recordings.answer(request).resource


BAD = {
    "unknown type": lambda r: encode_stream([r.fill(b"a")])[:-48] + encode_stream([r.fill(b"x")]).replace(b"\x11", b"\x99", 1),
    "unknown buffer": lambda r: [RecordedFill(Ref(make_id(ResourceType.BUFFER, 9, 77), 0, 4), b"x")],
    "id of another type": lambda r: [RecordedFill(Ref(r.kernels, 0, 4), b"x")],
    "buffer as executable": lambda r: [RecordedDispatch(r.buffer, EMPTY, (1, 1, 1), (), b"")],
    "unknown kernel": lambda r: [r.launch(len(NAMES))],
    "too few bindings": lambda r: [r.launch(FILL_INDEX, [], COUNT_AND_START)],
    "too few constants": lambda r: [r.launch(FILL_INDEX, [Ref(r.buffer, 0, 16)], bytes(4))],
    "binding too small": lambda r: [r.launch(FILL_INDEX, [Ref(r.buffer, 0, 8)], COUNT_AND_START)],
    "binding out of range": lambda r: [r.launch(FILL_INDEX, [Ref(r.buffer, 8, 16)], COUNT_AND_START)],
    "grid too large": lambda r: [r.launch(EMPTY, grid=(1, 1, 1 << 31))],
    "fill out of range": lambda r: [r.fill(b"x", 8, 16)],
    "fill with a part of a pattern": lambda r: [r.fill(b"abcd", 0, 6)],
    "update out of range": lambda r: [RecordedUpdate(Ref(r.buffer, 8, 16), bytes(16))],
    "update that does not fit": lambda r: [RecordedUpdate(Ref(r.buffer, 8, 8), bytes(9))],
    "update of no buffer": lambda r: [RecordedUpdate(Ref(r.kernels, 0, 16), bytes(4))],
    "copy out of range": lambda r: [RecordedCopy(Ref(r.buffer, 0, 8), Ref(r.buffer, 12, 8), 8)],
    "copy of more than there is": lambda r: [RecordedCopy(Ref(r.buffer, 0, 4), Ref(r.buffer, 8, 8), 8)],
    "copy from no buffer": lambda r: [RecordedCopy(Ref(make_id(ResourceType.BUFFER, 9, 77), 0, 8), Ref(r.buffer, 8, 8), 8)],
    "copy onto itself": lambda r: [RecordedCopy(Ref(r.buffer, 0, 8), Ref(r.buffer, 4, 8), 8)],
    "no such slot": lambda r: [RecordedFill(Ref(0, 0, 4, 5), b"x")],
    "unknown event": lambda r: [RecordedEvent(2, make_id(ResourceType.EVENT, 1, 1))],
    "event of another type": lambda r: [RecordedEvent(1, r.buffer)],
    "reset of no event": lambda r: [RecordedEvent(3, make_id(ResourceType.EVENT, 1, 1))],
    "signal of no event": lambda r: [RecordedEvent(1, make_id(ResourceType.EVENT, 1, 1))],
    "grid of an unknown buffer": lambda r: [r.indirect(EMPTY, Ref(make_id(ResourceType.BUFFER, 9, 77), 0, 12))],
    "grid in no buffer": lambda r: [r.indirect(EMPTY, Ref(r.kernels, 0, 12))],
    "grid out of range": lambda r: [r.indirect(EMPTY, Ref(r.buffer, 8, 12))],
    "grid in too little": lambda r: [r.indirect(EMPTY, Ref(r.buffer, 0, 8))],
    "grid not aligned": lambda r: [r.indirect(EMPTY, Ref(r.buffer, 2, 12))],
    "grid in no slot": lambda r: [r.indirect(EMPTY, Ref(0, 0, 12, 5))],
    "indirect unknown kernel": lambda r: [r.indirect(len(NAMES), Ref(r.buffer, 0, 12))],
    "indirect binding too small": lambda r: [r.indirect(FILL_INDEX, Ref(r.buffer, 0, 12), [Ref(r.buffer, 0, 8)], COUNT_AND_START)],
    "indirect too few bindings": lambda r: [r.indirect(FILL_INDEX, Ref(r.buffer, 0, 12), [], COUNT_AND_START)],
    "indirect too few constants": lambda r: [r.indirect(FILL_INDEX, Ref(r.buffer, 0, 12), [Ref(r.buffer, 0, 16)], bytes(4))],
    "label not begun": lambda r: [RecordedLabel("")],
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("one_shot", [False, True], ids=["uploaded", "along"])
def test_h18_malformed_later_command_never_submits_partial_recording(recordings, what, one_shot):
    """The last of a hundred records is bad: nothing runs, the reason names it, the session and other queues go on."""
    good = [recordings.fill(b"g")] * 100
    bad = BAD[what](recordings)
    stream = encode_stream(good) + (bad if isinstance(bad, bytes) else encode_stream(bad))
    if one_shot:
        failure = recordings.finish(recordings.execute(0, stream=stream))
    else:
        resource, request = recordings.upload(stream)
        refused = recordings.answer(request)
        failure = recordings.finish(recordings.execute(resource))
        assert (type(refused), refused.message) == (type(failure), failure.message)
    assert isinstance(failure, UsageError)
    assert failure.code is Status.INVALID_ARGUMENT
    assert "record 100: " in failure.message
    assert b"g" not in recordings.contents()


@pytest.mark.parametrize("one_shot", [False, True], ids=["uploaded", "along"])
def test_h18_a_label_must_end(recordings, one_shot):
    stream = encode_stream([recordings.fill(b"g"), RecordedLabel("open")])
    resource = 0 if one_shot else recordings.upload(stream)[0]
    failure = recordings.finish(recordings.execute(resource, stream=stream if one_shot else b""))
    assert "labels are still open" in str(failure)
    assert b"g" not in recordings.contents()


@pytest.mark.parametrize(
    ("table", "patches", "message"),
    [
        ((), (), "the binding table has 0 entries, the command buffer 1 slots"),
        (("buffer",) * 2, (), "the binding table has 2 entries"),
        (("small",), (), "slot 0 needs 16 bytes"),
        (("kernels",), (), "does not name a buffer"),
        (("buffer",), (Changed(1, None, None, ()),), "record 1 is no dispatch"),
        (("buffer",), (Changed(7, (1, 1, 1), None, ()),), "record 7 is no dispatch"),
        (("buffer",), (Changed(0, None, bytes(4), ()),), "takes 8 bytes of constants"),
        (("buffer",), (Changed(0, (1, 1, 1 << 20), None, ()),), "the grid"),
    ],
)
def test_h18_a_table_or_patch_that_does_not_fit_runs_nothing(recordings, table, patches, message):
    places = {"buffer": (recordings.buffer, 0, 16), "small": (recordings.buffer, 0, 8), "kernels": (recordings.kernels, 0, 16)}
    records = [recordings.launch(FILL_INDEX, [Ref(0, 0, 16, 0)], COUNT_AND_START), recordings.fill(b"g")]
    resource, _ = recordings.upload(records, slots=1)
    failure = recordings.finish(recordings.execute(resource, [places[entry] for entry in table], patches))
    assert message in str(failure)
    assert b"g" not in recordings.contents()


def test_h14_an_id_of_another_type_is_no_command_buffer(recordings):
    failure = recordings.finish(recordings.execute(recordings.buffer))
    assert "does not name a command buffer" in str(failure)


def test_h14_an_execute_that_overtakes_its_recording_is_parked(recordings):
    """It comes before the upload is even announced; what is behind it waits, another queue goes on."""
    raw = recordings.raw
    resource = raw.session.provisional(ResourceType.COMMAND_BUFFER)
    recordings.execute(resource)
    last = recordings.execute(resource)
    raw.send()
    assert recordings.contents() is not None
    assert raw.progress(0) == []
    stream = encode_stream([recordings.fill(b"p")])
    raw.session.request(CommandBufferUpload(resource, 0, 0, len(stream), stream))
    assert recordings.finish(last) is None
    assert recordings.contents() == b"p" * 16


def test_h14_a_parked_execute_fails_with_its_recording(recordings):
    raw = recordings.raw
    resource = raw.session.provisional(ResourceType.COMMAND_BUFFER)
    epoch = recordings.execute(resource)
    raw.send()
    recordings.contents()
    raw.session.request(CommandBufferUpload(resource, 3, 0, 0, b""))
    assert "there is no device 3" in str(recordings.finish(epoch))


def test_h14_a_recording_that_overtakes_its_buffer_is_held(recordings):
    """The upload names a buffer that is asked for on the other lane, later."""
    raw = recordings.raw
    buffer = raw.session.allocate(0, 16)
    resource, request = recordings.upload([RecordedFill(Ref(buffer, 0, 16), b"h")])
    recordings.answer(recordings.upload([])[1])  # the control lane has gone on
    assert not [event for event in raw.events if isinstance(event, Responded) and event.id == request]
    epoch = recordings.execute(resource)
    assert recordings.finish(epoch) is None
    assert recordings.answer(request).resource


def test_h07_recordings_that_wait_for_their_buffers_are_bounded(monkeypatch):
    monkeypatch.setattr("remora.server.command_buffers.MAX_STREAM", 100)
    with SharedServer() as server, raw_client(server.uri) as raw:
        recordings = Recordings(raw)
        missing = raw.session.provisional(ResourceType.BUFFER)
        requests = [recordings.upload([RecordedFill(Ref(missing, 0, 4), b"x")])[1] for _ in range(3)]
        assert isinstance(recordings.answer(requests[2]), BusyError)
        assert not [event for event in raw.events if isinstance(event, Responded) and event.id in requests[:2]]


def test_h14_a_recording_waits_for_the_executable_that_it_names(raw):
    """And a one-shot execution does, too."""
    kernels, artifact = raw.begin_load(VECTOR)
    stream = encode_stream([RecordedDispatch(kernels, EMPTY, (1, 1, 1), (), b"")])
    resource = raw.session.provisional(ResourceType.COMMAND_BUFFER)
    raw.session.request(CommandBufferUpload(resource, 0, 0, len(stream), stream))
    uploaded = raw.command(0, commands.EXECUTE, encode_execute(resource, (), (), b""))
    along = raw.command(1, commands.EXECUTE, encode_execute(0, (), (), stream))
    other = raw.command(2, commands.BARRIER)
    raw.send()
    raw.advanced(2, other)
    assert raw.progress(0) == raw.progress(1) == []
    raw.send_artifact(artifact)
    assert raw.advanced(0, uploaded).failure is None
    assert raw.advanced(1, along).failure is None


def test_h14_an_id_older_than_the_newest_is_gone_for_good(recordings):
    old = recordings.raw.session.provisional(ResourceType.COMMAND_BUFFER)
    recordings.answer(recordings.upload([])[1])
    assert isinstance(recordings.finish(recordings.execute(old)), NotFoundError)


def test_h15_a_released_recording_is_gone_and_its_executions_are_not(recordings):
    raw = recordings.raw
    resource, request = recordings.upload([recordings.fill(b"r")])
    recordings.answer(request)
    first = recordings.execute(resource)
    raw.session.release([resource])
    second = recordings.execute(resource)
    raw.send()
    assert isinstance(raw.advanced(0, second).failure, NotFoundError)
    assert raw.progress(0)[0] == (first, None)
    assert recordings.contents() == b"r" * 16


def test_h15_a_release_waits_for_a_parked_execute(recordings):
    raw = recordings.raw
    resource = raw.session.provisional(ResourceType.COMMAND_BUFFER)
    buffer = raw.session.allocate(0, 4)
    epoch = recordings.execute(resource)
    raw.session.release([buffer])
    raw.send()
    recordings.contents()
    stream = encode_stream([RecordedFill(Ref(buffer, 0, 4), b"x")])
    raw.session.request(CommandBufferUpload(resource, 0, 0, len(stream), stream))
    assert recordings.finish(epoch) is None


# -- through bulk -------------------------------------------------------------------------------------------------------------


def transfer(raw, transfer_id, data):
    frames = (
        encode_bulk(START, transfer_id, len(data)),
        encode_bulk(DATA, transfer_id, 0, len(data)) + data,
        encode_bulk(COMPLETE, transfer_id, len(data)),
    )
    raw.carriers[Lane.BULK].send_all(b"".join(frames), timeout=LONG)


def announce(recordings, stream, transfer_id, queue=0):
    """An EXECUTE whose one-shot stream is to come over bulk."""
    body = Announced(0, transfer_id, 0, 0, 0, len(stream))
    epoch = recordings.raw.command(queue, commands.EXECUTE, encode_announced(body))
    recordings.raw.send()
    return epoch


def test_h18_a_large_recording_comes_over_bulk(recordings):
    raw = recordings.raw
    stream = encode_stream([recordings.fill(b"b")] * 2000)
    assert len(stream) > MAX_INLINE_STREAM
    resource = raw.session.provisional(ResourceType.COMMAND_BUFFER)
    raw.session.request(CommandBufferUpload(resource, 0, 0, len(stream), b"", 3))
    epoch = recordings.execute(resource)
    raw.send()
    transfer(raw, 3, stream)
    assert recordings.finish(epoch) is None
    assert recordings.contents() == b"b" * 16


def test_h18_an_execute_waits_for_its_payload(recordings):
    raw = recordings.raw
    stream = encode_stream([recordings.fill(b"w")])
    epoch = announce(recordings, stream, 5)
    behind = raw.command(0, commands.BARRIER)
    raw.send()
    recordings.contents()
    assert raw.progress(0) == []
    transfer(raw, 5, stream)
    assert raw.advanced(0, behind).failure is None
    assert epoch + 1 == behind
    assert recordings.contents() == b"w" * 16


def test_h18_an_execute_fails_with_its_payload(recordings):
    epoch = announce(recordings, bytes(64), 5)
    recordings.contents()
    recordings.raw.abort_artifact(DeviceError("out of paper"), 5)
    assert "out of paper" in str(recordings.finish(epoch))


def test_h18_an_execute_on_a_failed_queue_gives_its_payload_up(recordings):
    """The peer would wait for its credit for ever."""
    raw = recordings.raw
    recordings.execute(recordings.buffer)
    announce(recordings, bytes(64), 5)
    header, kinds = bytearray(24), []
    while 0x43 not in kinds:  # the credit of the executable that was loaded comes before the ABORT
        raw.read_bulk(header)
        kinds.append(header[4])
        raw.read_bulk(bytearray(int.from_bytes(header[:4], "little") - 24))
    assert kinds == [0x44, 0x43]


def test_h25_a_payload_that_breaks_a_rule_ends_the_session(recordings):
    raw = recordings.raw
    payload, size = encode_payload((), [Changed(0, None, None, ())], b"")
    body = Announced(recordings.buffer, 5, 0, 1, size, 0)
    raw.command(0, commands.EXECUTE, encode_announced(body))
    raw.send()
    transfer(raw, 5, b"\xff" * len(payload))
    assert isinstance(raw.failed(), PeerError)


def test_h25_a_transfer_is_announced_once(recordings):
    announce(recordings, bytes(64), 5)
    announce(recordings, bytes(64), 5, queue=1)
    failure = recordings.raw.failed()
    assert isinstance(failure, PeerError)
    assert "on its way already" in str(failure)
