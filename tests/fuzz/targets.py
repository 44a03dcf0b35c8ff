"""What is fuzzed: name -> (a function of bytes that may raise nothing but PeerError, the golden frames it starts from)."""

import struct
from collections.abc import Callable
from typing import NamedTuple

from tests.golden import frames
from tests.golden.codecs import CODECS, QUEUE

from remora.base.ids import ResourceType
from remora.errors import PeerError
from remora.session.events import Failed
from remora.session.session import Session
from remora.session.state import Lane, Role, State
from remora.wire import calls, commands, queue
from remora.wire.bootstrap import Hello, decode_bootstrap
from remora.wire.bulk import decode_abort, decode_bulk, decode_lend
from remora.wire.catalog import read_catalog
from remora.wire.command_buffer import decode_stream, encode_stream
from remora.wire.control import decode_control
from remora.wire.executable_calls import EXECUTABLE_LOAD
from remora.wire.execute import Announced, encode_payload, read_payload
from remora.wire.export_calls import EXECUTABLE_EXPORTS
from remora.wire.extension import EXTENSION
from remora.wire.file_commands import FILE_READ, FILE_WRITE
from remora.wire.frame import FrameSplitter
from remora.wire.layout import MAX_QUEUE_FRAME, Reader, Writer
from remora.wire.memory_calls import MEMORY_CLOSE, METHODS
from remora.wire.profile import read_records, read_taken
from remora.wire.sharing_calls import PLACE_SIZE, SEGMENT_OPEN, decode_place, encode_place
from remora.wire.status import read_status


class Target(NamedTuple):
    run: Callable[[bytes], None]
    seeds: list[bytes]


def seeds(*lanes, start=""):
    return [frames.golden(lane, name) for lane, name in frames.NAMES if lane in lanes and name.startswith(start)]


def same_bytes(lane):
    """Whatever a lane's decoder takes is the one encoding of what it says."""

    def run(data):
        assert CODECS[lane].encode(CODECS[lane].decode(data)) == data

    return Target(run, seeds(lane))


def by_kind(kind, start):
    """A queue decoder with any bytes behind a header of the size that they have."""

    def run(data):
        QUEUE[kind][0](memoryview(data + bytes(64)), 0, len(data))

    return Target(run, seeds("queue", start=start))


OPS = set()  # whose bodies have a target


def body_of(op, start):
    OPS.add(op)
    head = 24

    def run(data):
        commands.DECODERS[op](memoryview(data), min(head, len(data)), len(data))

    return Target(run, seeds("queue", start=start))


def reader(read, *lanes):
    return Target(lambda data: read(Reader(memoryview(data), "fuzz")), [seed[16:] for seed in seeds(*lanes)])


def body_reader(read, start):
    """A control decoder with any bytes behind the header."""
    return Target(
        lambda data: read(Reader(memoryview(data), "fuzz")) and None, [seed[8:] for seed in seeds("control", start=start)]
    )


def call_reader(method):
    """What reads the request of a call."""
    return lambda data: calls.METHODS[method].read(Reader(memoryview(data), "fuzz")) and None


def call_answer_reader(method):
    """What reads the answer to a call."""
    return lambda data: calls.METHODS[method].read_answer(Reader(memoryview(data), "fuzz")) and None


def split(data):
    """Any cut gives the same frames; here one in the middle and one at every eighth byte."""
    found = []
    for step in (len(data) or 1, len(data) // 2 + 1, 8):
        splitter, out = FrameSplitter("queue", MAX_QUEUE_FRAME), bytearray()
        try:
            for start in range(0, len(data), step):
                view, end = splitter.feed(memoryview(data)[start : start + step])
                out += view[:end]
                if splitter.broken:
                    splitter.feed(memoryview(b""))
        except PeerError:
            pass
        found.append(out)
    assert found[0] == found[1] == found[2]


def operational(role):
    """A session behind its bootstrap; a client's has commands, a request and an allocation open."""
    session = Session(role, "fuzz", 0.0)
    if role is Role.CLIENT:
        session.greet(Hello())
    session.receive(Lane.CONTROL, memoryview(frames.golden("bootstrap", "hello" if role is Role.SERVER else "accept")))
    if role is Role.SERVER:
        session.accept(frames.ACCEPT)
    session.lane_joined(Lane.QUEUE)
    session.lane_joined(Lane.BULK)
    if role is Role.CLIENT:
        for axis in (frames.AXIS, frames.OTHER_AXIS):
            for _ in range(9):
                session.command(axis, commands.BARRIER, (), b"")
        while session.provisional(ResourceType.BUFFER) < frames.NEW_BUFFER - 1:
            pass
        session.allocate(0, 8)
        session.allocate(0, 8)
    assert session.state is State.OPERATIONAL
    return session


def session_target(role):
    """The first byte of the input says how it arrives: on which lane, in pieces of which size."""

    def run(data):
        session = operational(role) if data[:1] < b"\xf0" else Session(role, "fuzz", 0.0)
        lane = Lane(data[0] & 1) if data else Lane.CONTROL
        step = (data[0] >> 1 & 7) * 9 + 5 if data else 1
        events = []
        for start in range(1, len(data), step):
            events += session.receive(lane, memoryview(data)[start : start + step])
        failures = [event for event in events if isinstance(event, Failed)]
        assert len(failures) == (session.failure is not None)
        assert not failures or events[-1] is failures[0]
        assert session.pending(Lane.QUEUE) + session.pending(Lane.CONTROL) <= len(data) + 20_000

    lead = [bytes([lane]) for lane in (0, 2, 6, 1, 3, 7, 0xF0)]
    streams = [b"".join(seeds("queue")), b"".join(seeds("control")), *seeds("queue", "control", "bootstrap")]
    return Target(run, [head + stream for head in lead for stream in streams])


def same_records(data):
    """Whatever is a recording is the one encoding of its records."""
    assert encode_stream(decode_stream(memoryview(data))) == data


def payload(data):
    """What came over bulk for an EXECUTE, with every count of slots and patches that its size allows."""
    for slots, patches in ((0, 1), (2, 2), (1, 0)):
        size = max(0, len(data) - 24 * slots)
        body = Announced(1, 1, slots, patches, size, 0)
        if body.size == len(data):
            whole = read_payload(body, memoryview(data))
            assert encode_payload(*whole[1:]) == (data, size)


def golden_call(name):
    return frames.golden("control", name)


def memory_calls(data):
    """The body of a call about virtual memory, behind a byte that says of which: what the reader takes, the writer gives back."""
    method = list(METHODS.values())[data[0] % len(METHODS)] if data else METHODS[MEMORY_CLOSE]
    body = method.read(Reader(memoryview(data)[1:], "fuzz"))
    assert method.write(Writer(), body).frame(0)[8:] == data[1:]


def bulk_header(data):
    header = decode_bulk(data)
    assert 0 <= header.rest < 1 << 21


TARGETS = {
    "bootstrap": same_bytes("bootstrap"),
    "control": same_bytes("control"),
    "queue": same_bytes("queue"),
    "bulk": same_bytes("bulk"),
    "bootstrap-frame": Target(lambda data: decode_bootstrap(memoryview(data)) and None, seeds("bootstrap")),
    "control-frame": Target(lambda data: decode_control(memoryview(data)) and None, seeds("control")),
    "command": by_kind(queue.COMMAND, "command"),
    "allocate": by_kind(queue.ALLOCATE, "allocate"),
    "release": by_kind(queue.RELEASE, "release"),
    "advance": by_kind(queue.ADVANCE, "advance"),
    "result": by_kind(queue.RESULT, "result"),
    "event": by_kind(queue.EVENT, "event"),
    "state": by_kind(queue.STATE, "state"),
    "unnamed": by_kind(queue.UNNAMED, "unnamed"),
    "fill": body_of(commands.FILL, "command_fill"),
    "update": body_of(commands.UPDATE, "command_update"),
    "copy": body_of(commands.COPY, "command_copy"),
    "read": body_of(commands.READ, "command_read"),
    "locate": body_of(commands.LOCATE, "command_locate"),
    "place": Target(lambda data: decode_place(data) and None, [encode_place(3, 4096), bytes(PLACE_SIZE)]),
    "lend": Target(lambda data: decode_lend(data) and None, [seed[24:] for seed in seeds("bulk", start="lend")]),
    "segment-open": Target(call_reader(SEGMENT_OPEN), [seed[16:] for seed in seeds("control", start="request_segment")]),
    "segment-opened": Target(call_answer_reader(SEGMENT_OPEN), [seed[16:] for seed in seeds("control", start="response_segment")]),
    "upload": body_of(commands.UPLOAD, "command_upload"),
    "dispatch": body_of(commands.DISPATCH, "command_dispatch"),
    "indirect": body_of(commands.DISPATCH_INDIRECT, "command_indirect"),
    "extension": body_of(EXTENSION, "command_extension"),
    "alloca": body_of(commands.ALLOCA, "command_alloca"),
    "dealloca": body_of(commands.DEALLOCA, "command_dealloca"),
    "execute": body_of(commands.EXECUTE, "command_execute"),
    "file-read": body_of(FILE_READ, "command_file"),
    "file-write": body_of(FILE_WRITE, "command_file"),
    "recording": Target(same_records, [frames.STREAM, frames.STREAM[:8], b""]),
    "payload": Target(payload, [seed[56:] for seed in seeds("queue", start="command_execute") if len(seed) > 56]),
    "memory-calls": Target(memory_calls, [bytes([seed[12] & 15]) + seed[16:] for seed in map(golden_call, frames.MEMORY_REQUESTS)]),
    "bulk-header": Target(bulk_header, seeds("bulk")),
    "abort": Target(lambda data: decode_abort(memoryview(data)) and None, [seed[24:] for seed in seeds("bulk", start="abort")]),
    "records": body_reader(read_records, "records"),
    "taken": body_reader(read_taken, "taken"),
    "executable-load": Target(call_reader(EXECUTABLE_LOAD), [seed[16:] for seed in seeds("control", start="request_")]),
    "executable-exports": Target(
        call_answer_reader(EXECUTABLE_EXPORTS), [seed[16:] for seed in seeds("control", start="response_exports")]
    ),
    "status": reader(read_status, "control"),
    "catalog": Target(
        lambda data: read_catalog(Reader(memoryview(data), "fuzz")) and None, [frames.golden("bootstrap", "accept")[88:]]
    ),
    "splitter": Target(split, [b"".join(seeds("queue")), b"".join(seeds("control")), struct.pack("<I", 1 << 16)]),
    "session-client": session_target(Role.CLIENT),
    "session-server": session_target(Role.SERVER),
}
