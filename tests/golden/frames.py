"""The messages whose bytes are pinned, by lane and name. `tests/golden/<lane>.<name>.bin` holds the bytes."""

from pathlib import Path

from remora.base.ids import ResourceType, make_axis, make_id, make_provisional
from remora.errors import BusyError, ClosedError, DeviceError, DeviceLostError, NotFoundError, OutOfMemoryError, UsageError
from remora.wire import bulk, commands, queue
from remora.wire import command_buffer as recorded
from remora.wire.bootstrap import CAPABILITIES, CAPABILITY_BULK, Accept, Hello, Join, Joined, Reject
from remora.wire.catalog import DeviceEntry, HeapEntry
from remora.wire.command_buffer_calls import COMMAND_BUFFER_UPLOAD, CommandBufferUpload
from remora.wire.control import Failure, Goaway, Ping, Pong, Request, Response
from remora.wire.executable_calls import EXECUTABLE_GLOBAL, EXECUTABLE_LOAD, Absent, ExecutableGlobal, ExecutableLoad
from remora.wire.execute import Announced, Changed, Execute
from remora.wire.export_calls import EXECUTABLE_EXPORTS, ExecutableExports, ExportEntry, Exports
from remora.wire.extension import EXTENSION, Extend
from remora.wire.file_calls import FILE_OPEN, FILE_REGISTER, READ, WRITE, FileOpen, FileRegister, Opened
from remora.wire.file_commands import FILE_READ, FILE_WRITE, FileRange
from remora.wire.memory_calls import (
    PHYSICAL_ALLOCATE,
    VIRTUAL_MAP,
    VIRTUAL_RESERVE,
    MemoryClose,
    PhysicalAllocate,
    Placed,
    VirtualMap,
    VirtualProtect,
    VirtualReserve,
    VirtualUnmap,
)
from remora.wire.method import Done, Loaded
from remora.wire.profile import ProfileRecord, Records, Taken
from remora.wire.profile_calls import (
    CLOCK_READ,
    PROFILE_BEGIN,
    ClockIs,
    ClockRead,
    ProfileBegin,
    ProfileEnd,
    ProfileFlush,
)
from remora.wire.sharing_calls import SEGMENT_OPEN, SegmentOpen, SegmentOpened

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
FILE = make_id(ResourceType.FILE, 1, 7)
NEW_FILE = make_provisional(ResourceType.FILE, 13)
NEW_PHYSICAL = make_provisional(ResourceType.PHYSICAL_MEMORY, 14)
PHYSICAL = make_id(ResourceType.PHYSICAL_MEMORY, 1, 8)
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
    recorded.RecordedBarrier(),
    recorded.RecordedIndirect(KERNELS, 1, recorded.Ref(BUFFER, 16, 12), (_SPAN, _SLOT), b"\x2a\0\0\0"),
    recorded.RecordedIndirect(KERNELS, 0, _SLOT, (), b""),
    recorded.RecordedLabel(""),
]
STREAM = recorded.encode_stream(RECORDS)

CPU = DeviceEntry(
    name="Eight cores",
    driver="cpu",
    targets=(("cpu", "x86_64-v3"), ("cpu", "x86_64")),
    heaps=(HeapEntry("host", 16 << 30, 4 << 30, 64),),
    queue_count=2,
    page_size=4096,
)
NULL = DeviceEntry(
    name="Nichts ü", driver="null", targets=(), heaps=(), queue_count=1, extensions=(("null.bytes", ("reverse", "xor")),)
)
ACCEPT = Accept(1, TOKEN, CAPABILITY_BULK, 2, ((AXIS, 0), (OTHER_AXIS, 0)), 256, 24 << 20, (CPU, NULL))

RAN = (
    ProfileRecord(2, False, 1, "add_i32", "", (4, 2, 1), 1, 9, 1000, 1005, 1009, 0),
    ProfileRecord(13, False, 0, "layer ü", "step/layer ü", (0, 0, 0), 0, 10, 1001, 1011, 1021, 0),
    ProfileRecord(7, True, 0, "", "step", (0, 0, 0), 3, 10, 1001, 1010, 1030, 0),
    ProfileRecord(3, False, 0, "", "", (0, 0, 0), 0, (1 << 64) - 1, 1040, 1040, 1040, 4096),
    ProfileRecord(2, False, 1, "add_i32", "", (1, 1, 1), 1, 10, 1041, 1042, 1043, 0),
)

BOOTSTRAP = {
    "hello": Hello(client="remora 0.1"),
    "hello_axes": Hello(CAPABILITIES, CAPABILITY_BULK, 3, ((5, 1), (6, 0)), ""),
    "hello_bulk": Hello(client="remora 0.1", bulk=8),
    "accept": ACCEPT,
    "accept_bulk": Accept(1, TOKEN, CAPABILITY_BULK, 2, ((AXIS, 0),), 256, 4 << 20, (NULL,), bulk=3),
    "reject": Reject(BusyError("all 16 sessions are in use", origin="tcp://127.0.0.1:5000")),
    "join_queue": Join(1, TOKEN, 1),
    "join_bulk": Join(1, TOKEN, 2),
    "join_bulk_8": Join(1, TOKEN, 9),
    "joined": Joined(1, 2),
}
CONTROL = {
    "ping": Ping(1),
    "pong": Pong(0xFFFF_FFFF_FFFF_FFFF),
    "goaway": Goaway(ClosedError("the server stops")),
    "failure": Failure(DeviceLostError("the session's process died of SIGSEGV", origin="kernel crash")),
    "request_inline": Request(1, ExecutableLoad(NEW_KERNELS, 0, ("cpu", "x86_64"), MANIFEST, 5, b"\x7fELF!")),
    "request_digest": Request(2, ExecutableLoad(NEW_KERNELS, 0, ("cpu", "x86_64"), MANIFEST, 1 << 20, digest=bytes(range(32)))),
    "request_specialized": Request(3, ExecutableLoad(NEW_KERNELS, 0, ("cpu", "x86_64"), MANIFEST, 1, b"!", constants=(7, 1 << 31))),
    "request_bulk": Request(0xFFFF_FFFF, ExecutableLoad(NEW_KERNELS, 1, ("cpu", "x86_64"), MANIFEST, 1 << 20, b"", 4)),
    "request_recording": Request(3, CommandBufferUpload(NEW_RECORDING, 1, 6, len(STREAM), STREAM)),
    "request_recording_bulk": Request(4, CommandBufferUpload(NEW_RECORDING, 0, 0, 1 << 20, b"", 4)),
    "request_segment": Request(7, SegmentOpen(3)),
    "response_segment": Response(7, SEGMENT_OPEN, SegmentOpened(64 << 20, 1, 4711)),
    "request_global": Request(4, ExecutableGlobal(KERNELS, "total")),
    "request_exports": Request(5, ExecutableExports(KERNELS, 256)),
    "response_exports": Response(
        5, EXECUTABLE_EXPORTS, Exports(300, (ExportEntry("add", 3, 1, (8, 4, 1)), ExportEntry("", 0, 0, (0, 0, 0))))
    ),
    "response_exports_none": Response(6, EXECUTABLE_EXPORTS, Exports(0, ())),
    "response_global": Response(4, EXECUTABLE_GLOBAL, Loaded(BUFFER)),
    "response_absent": Response(1, EXECUTABLE_LOAD, Absent()),
    "request_file": Request(5, FileOpen(NEW_FILE, 1, READ, False, "models/weights ü.bin")),
    "request_file_fresh": Request(6, FileOpen(NEW_FILE, 0, READ | WRITE, True, "out")),
    "request_file_register": Request(7, FileRegister(NEW_FILE, 1, READ, 0x12, 0x3456, "/home/me/weights ü.bin")),
    "response_file_registered": Response(7, FILE_REGISTER, Opened(FILE, 0)),
    "response_file": Response(5, FILE_OPEN, Opened(FILE, 5 << 30)),
    "response_loaded": Response(1, EXECUTABLE_LOAD, Loaded(KERNELS)),
    "response_recorded": Response(3, COMMAND_BUFFER_UPLOAD, Loaded(RECORDING)),
    "request_profile_begin": Request(5, ProfileBegin(1, 2)),
    "request_profile_flush": Request(6, ProfileFlush(1)),
    "request_profile_end": Request(7, ProfileEnd(0xFFFF_FFFF)),
    "request_clock": Request(8, ClockRead()),
    "response_profile_begin": Response(5, PROFILE_BEGIN, Done()),
    "response_clock": Response(8, CLOCK_READ, ClockIs(123_456_789_012, 0xFEDC_BA98_7654_3210)),
    "records": Records(1, 3, 7, RAN),
    "records_unnamed": Records(0xFFFF_FFFF, 1, 0, RAN[3:4]),
    "taken": Taken(1, 3),
    "request_reserve": Request(5, VirtualReserve(NEW_BUFFER, 1, 1 << 40)),
    "request_physical": Request(6, PhysicalAllocate(NEW_PHYSICAL, 1, 1 << 20)),
    "request_map": Request(7, VirtualMap(BUFFER, (Placed(4096, PHYSICAL, 0, 8192), Placed(65536, PHYSICAL, 4096, 4096)))),
    "request_unmap": Request(8, VirtualUnmap(BUFFER, 4096, 8192)),
    "request_protect": Request(9, VirtualProtect(BUFFER, 65536, 4096, 1)),
    "request_close_reservation": Request(10, MemoryClose(BUFFER)),
    "request_close_physical": Request(11, MemoryClose(PHYSICAL)),
    "response_reserved": Response(5, VIRTUAL_RESERVE, Loaded(BUFFER)),
    "response_physical": Response(6, PHYSICAL_ALLOCATE, Loaded(PHYSICAL)),
    "response_mapped": Response(7, VIRTUAL_MAP, Done()),
    "response_error": Response(2, EXECUTABLE_LOAD, NotFoundError("no kernel add; there are: sub", origin="cpu")),
}
MEMORY_REQUESTS = [
    *("request_reserve", "request_physical", "request_map", "request_unmap", "request_protect"),
    *("request_close_reservation", "request_close_physical"),
]
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
    "command_locate": (queue.COMMAND, commands.LOCATE, AXIS, 9, (), commands.Range(BUFFER, 64, 1 << 30)),
    "command_execute_bare": (queue.COMMAND, commands.EXECUTE, AXIS, 9, (), Execute(NEW_RECORDING, (), (), memoryview(b""))),
    "command_execute_along": (queue.COMMAND, commands.EXECUTE, AXIS, 9, (), Execute(0, ((BUFFER, 0, 8),), (), memoryview(STREAM))),
    "command_execute_bulk": (queue.COMMAND, commands.EXECUTE, AXIS, 9, (), Announced(RECORDING, 4, 4096, 1, 24, 0)),
    "command_file_read": (queue.COMMAND, FILE_READ, AXIS, 10, (), FileRange(BUFFER, 8, 64, FILE, 4096, 0)),
    "command_file_write": (queue.COMMAND, FILE_WRITE, AXIS, 11, (), FileRange(BUFFER, 8, 64, FILE, 0, 0)),
    "command_file_bridged": (queue.COMMAND, FILE_WRITE, AXIS, 12, (), FileRange(BUFFER, 0, 9 << 20, 0, 0, 5)),
    "command_indirect": (
        queue.COMMAND,
        commands.DISPATCH_INDIRECT,
        AXIS,
        13,
        (),
        commands.DispatchIndirect(TARGET, 16, _DISPATCH._replace(grid=(0, 0, 0))),
    ),
    "command_extension": (
        queue.COMMAND,
        EXTENSION,
        AXIS,
        14,
        (),
        Extend("null.bytes", 1, b"\x55", ((BUFFER, 8, 64), (TARGET, 0, 16))),
    ),
    "command_alloca": (queue.COMMAND, commands.ALLOCA, AXIS, 10, (), NEW_BUFFER),
    "command_dealloca": (queue.COMMAND, commands.DEALLOCA, AXIS, 11, (), BUFFER),
    "allocate": (queue.ALLOCATE, 0, NEW_BUFFER, 4096, False),
    "allocate_late": (queue.ALLOCATE, 1, NEXT_BUFFER, 1 << 40, True),
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
    "lend": (bulk.LEND, 1, 4096, bulk.Lent(3, (1 << 20) + 5)),
    "return": (bulk.RETURN, 1, (1 << 20) + 5, b""),
    "return_nothing": (bulk.RETURN, 1, 0, b""),
    "gone": (bulk.GONE, 3, 0, b""),
}

LANES = {"bootstrap": BOOTSTRAP, "control": CONTROL, "queue": QUEUE, "bulk": BULK}

#: (lane, name) of every golden message.
NAMES = [(lane, name) for lane, messages in LANES.items() for name in messages]


def path(lane: str, name: str) -> Path:
    return FOLDER / f"{lane}.{name}.bin"


def golden(lane: str, name: str) -> bytes:
    return path(lane, name).read_bytes()
