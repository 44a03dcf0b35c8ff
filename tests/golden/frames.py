"""The messages whose bytes are pinned, by lane and name. `tests/golden/<lane>.<name>.bin` holds the bytes."""

from pathlib import Path

from remora.base.ids import ResourceType, make_axis, make_id, make_provisional
from remora.errors import BusyError, ClosedError, DeviceError, DeviceLostError, NotFoundError, OutOfMemoryError, UsageError
from remora.wire import bulk, commands, queue
from remora.wire import command_buffer as recorded
from remora.wire.bootstrap import CAPABILITIES, CAPABILITY_BULK, Accept, Hello, Join, Joined, Reject
from remora.wire.calls import COMMAND_BUFFER_UPLOAD, EXECUTABLE_LOAD, CommandBufferUpload, ExecutableLoad, Loaded
from remora.wire.catalog import DeviceEntry, HeapEntry
from remora.wire.control import Failure, Goaway, Ping, Pong, Request, Response
from remora.wire.execute import Announced, Changed, Execute

FOLDER = Path(__file__).parent

AXIS = make_axis(1, 2, queue=0)
OTHER_AXIS = make_axis(1, 2, queue=1)
TOKEN = bytes(range(16))
BUFFER = make_id(ResourceType.BUFFER, 3, 12)
TARGET = make_id(ResourceType.BUFFER, 1, 13)
NEW_BUFFER = make_provisional(ResourceType.BUFFER, 7)
NEXT_BUFFER = make_provisional(ResourceType.BUFFER, 8)
KERNELS = make_id(ResourceType.EXECUTABLE, 1, 2)
NEW_KERNELS = make_provisional(ResourceType.EXECUTABLE, 9)
NEW_RECORDING = make_provisional(ResourceType.COMMAND_BUFFER, 11)
RECORDING = make_id(ResourceType.COMMAND_BUFFER, 1, 5)
EVENT = make_id(ResourceType.EVENT, 2, 6)
NEW_EVENT = make_provisional(ResourceType.EVENT, 12)
MANIFEST = b'{"kernels": []}'

_SPAN, _SLOT = recorded.Ref(BUFFER, 8, 64), recorded.Ref(0, 16, recorded.OPEN, 5)
#: One of each kind of record.
RECORDS = [
    recorded.RecordedLabel("layer 1 ü"),
    recorded.RecordedFill(_SLOT, b"\x01\x02"),
    recorded.RecordedUpdate(_SPAN, b"hello"),
    recorded.RecordedCopy(_SPAN, recorded.Ref(0, 0, 32, 1), 32),
    recorded.RecordedDispatch(KERNELS, 1, (4, 2, 1), (_SPAN, _SLOT), b"\x2a\0\0\0"),
    recorded.RecordedDispatch(KERNELS, 0, (1, 1, 1), (), b""),
    recorded.RecordedEvent(recorded.RESET_EVENT, EVENT),
    recorded.RecordedEvent(recorded.SIGNAL_EVENT, EVENT),
    recorded.RecordedEvent(recorded.WAIT_EVENT, EVENT),
    recorded.RecordedLabel(""),
]
STREAM = recorded.encode_stream(RECORDS)

CPU = DeviceEntry(
    name="Eight cores",
    driver="cpu",
    targets=(("cpu", "x86_64-v3"), ("cpu", "x86_64")),
    heaps=(HeapEntry("host", 16 << 30, 4 << 30, 64),),
    queue_count=2,
)
NULL = DeviceEntry(name="Nichts ü", driver="null", targets=(), heaps=(), queue_count=1)
ACCEPT = Accept(1, TOKEN, CAPABILITY_BULK, 2, ((AXIS, 0), (OTHER_AXIS, 0)), 256, (CPU, NULL))

BOOTSTRAP = {
    "hello": Hello(client="remora 0.1"),
    "hello_axes": Hello(CAPABILITIES, CAPABILITY_BULK, 3, ((5, 1), (6, 0)), ""),
    "accept": ACCEPT,
    "reject": Reject(BusyError("all 16 sessions are in use", origin="tcp://127.0.0.1:5000")),
    "join_queue": Join(1, TOKEN, 1),
    "join_bulk": Join(1, TOKEN, 2),
    "joined": Joined(1, 2),
}
CONTROL = {
    "ping": Ping(1),
    "pong": Pong(0xFFFF_FFFF_FFFF_FFFF),
    "goaway": Goaway(ClosedError("the server stops")),
    "failure": Failure(DeviceLostError("the session's process died of SIGSEGV", origin="kernel crash")),
    "request_inline": Request(1, ExecutableLoad(NEW_KERNELS, 0, ("cpu", "x86_64"), MANIFEST, 5, b"\x7fELF!")),
    "request_bulk": Request(0xFFFF_FFFF, ExecutableLoad(NEW_KERNELS, 1, ("cpu", "x86_64"), MANIFEST, 1 << 20, b"", 4)),
    "request_recording": Request(3, CommandBufferUpload(NEW_RECORDING, 1, 6, len(STREAM), STREAM)),
    "request_recording_bulk": Request(4, CommandBufferUpload(NEW_RECORDING, 0, 0, 1 << 20, b"", 4)),
    "response_loaded": Response(1, EXECUTABLE_LOAD, Loaded(KERNELS)),
    "response_recorded": Response(3, COMMAND_BUFFER_UPLOAD, Loaded(RECORDING)),
    "response_error": Response(2, EXECUTABLE_LOAD, NotFoundError("no kernel add; there are: sub", origin="cpu")),
}
_FILL = commands.Fill(BUFFER, 8, 16, b"\x01\x02")
_DISPATCH = commands.Dispatch(KERNELS, 1, (4, 2, 1), (BUFFER, 0, 64, NEW_BUFFER, 64, 128), b"\x2a\0\0\0")
_PATCHES = (
    Changed(0, (2, 1, 1), None, ()),
    Changed(4, None, b"\x2b\0\0\0", ((0, TARGET, 0, 64), (1, BUFFER, 64, 64))),
)
_EXECUTE = Execute(RECORDING, ((BUFFER, 0, 64), (TARGET, 8, 8)), _PATCHES, memoryview(b""))
QUEUE = {
    "command_barrier": (queue.COMMAND, commands.BARRIER, AXIS, 1, (), None),
    "command_barrier_waits": (queue.COMMAND, commands.BARRIER, AXIS, 9, ((AXIS, 8), (OTHER_AXIS, 1)), None),
    "command_fill": (queue.COMMAND, commands.FILL, AXIS, 1, (), _FILL),
    "command_update": (queue.COMMAND, commands.UPDATE, AXIS, 2, (), commands.Update(BUFFER, 4, 5, memoryview(b"hello"))),
    "command_copy": (queue.COMMAND, commands.COPY, AXIS, 3, ((OTHER_AXIS, 1),), commands.Copy(BUFFER, 0, 64, TARGET, 128)),
    "command_read": (queue.COMMAND, commands.READ, AXIS, 4, (), commands.Range(NEW_BUFFER, 0, 64 << 10)),
    "command_upload": (queue.COMMAND, commands.UPLOAD, AXIS, 5, (), commands.Transfer(BUFFER, 0, 1 << 20, 1)),
    "command_download": (queue.COMMAND, commands.DOWNLOAD, AXIS, 6, (), commands.Transfer(BUFFER, 0, 1 << 20, 2)),
    "command_dispatch": (queue.COMMAND, commands.DISPATCH, AXIS, 7, ((AXIS, 6),), _DISPATCH),
    "command_dispatch_bare": (queue.COMMAND, commands.DISPATCH, AXIS, 8, (), commands.Dispatch(KERNELS, 0, (1, 1, 1), (), b"")),
    "command_execute": (queue.COMMAND, commands.EXECUTE, AXIS, 9, (), _EXECUTE),
    "command_execute_bare": (queue.COMMAND, commands.EXECUTE, AXIS, 9, (), Execute(NEW_RECORDING, (), (), memoryview(b""))),
    "command_execute_along": (queue.COMMAND, commands.EXECUTE, AXIS, 9, (), Execute(0, ((BUFFER, 0, 8),), (), memoryview(STREAM))),
    "command_execute_bulk": (queue.COMMAND, commands.EXECUTE, AXIS, 9, (), Announced(RECORDING, 4, 4096, 1, 24, 0)),
    "allocate": (queue.ALLOCATE, 0, NEW_BUFFER, 4096),
    "release": (queue.RELEASE, 8, (BUFFER, NEW_BUFFER)),
    "advance": (queue.ADVANCE, AXIS, 8, (), None),
    "advance_names": (queue.ADVANCE, AXIS, 0, ((NEW_BUFFER, BUFFER), (NEXT_BUFFER, TARGET)), None),
    "advance_failed": (queue.ADVANCE, AXIS, 9, (), DeviceError("the kernel returned 7", origin="kernel add")),
    "advance_names_failed": (queue.ADVANCE, AXIS, 9, ((NEW_BUFFER, BUFFER),), UsageError("the grid is empty")),
    "result": (queue.RESULT, AXIS, 4, memoryview(bytes(range(8)))),
    "result_padded": (queue.RESULT, AXIS, 5, memoryview(b"hello")),
    "event_create": (queue.EVENT, queue.EVENT_CREATE, 1, NEW_EVENT, 0),
    "event_signal": (queue.EVENT, queue.EVENT_SIGNAL, 0, NEW_EVENT, 0),
    "event_wait": (queue.EVENT, queue.EVENT_WAIT, 0, NEW_EVENT, 3),
    "state_set": (queue.STATE, queue.EVENT_WAIT, NEW_EVENT, 3, True),
    "state_clear": (queue.STATE, queue.EVENT_QUERY, NEW_EVENT, 1, False),
    "state_failed": (queue.STATE, queue.EVENT_QUERY, NEW_EVENT, 2, ClosedError("the device was closed")),
    "unnamed": (queue.UNNAMED, NEW_BUFFER, OutOfMemoryError("4096 bytes asked for, 0 are there")),
}
BULK = {
    "start": (bulk.START, 1, (1 << 20) + 5, b""),
    "data": (bulk.DATA, 1, 1 << 20, b"last!"),
    "complete": (bulk.COMPLETE, 1, (1 << 20) + 5, b""),
    "abort": (bulk.ABORT, 2, 0, ClosedError("the buffer was freed")),
    "credit": (bulk.CREDIT, 1, (1 << 20) + 5, b""),
}

LANES = {"bootstrap": BOOTSTRAP, "control": CONTROL, "queue": QUEUE, "bulk": BULK}

#: (lane, name) of every golden message.
NAMES = [(lane, name) for lane, messages in LANES.items() for name in messages]


def path(lane: str, name: str) -> Path:
    return FOLDER / f"{lane}.{name}.bin"


def golden(lane: str, name: str) -> bytes:
    return path(lane, name).read_bytes()
