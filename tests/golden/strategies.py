"""Hypothesis strategies for every message of the wire, by lane, in the form that `codecs` takes."""

from hypothesis import strategies as st

from remora.base.frontier import MAX_FRONTIER
from remora.base.ids import MAX_COUNTER, MAX_GENERATION, MAX_SLOT, ResourceType, make_id, make_provisional
from remora.errors import Status, error_from_status
from remora.wire import bulk, commands, queue
from remora.wire import command_buffer as recorded
from remora.wire.bootstrap import CAPABILITIES, LANES, MAX_BULK, Accept, Hello, Join, Joined, Reject
from remora.wire.catalog import DeviceEntry, HeapEntry
from remora.wire.command_buffer_calls import COMMAND_BUFFER_UPLOAD, MAX_STREAM, CommandBufferUpload
from remora.wire.control import Failure, Goaway, Ping, Pong, Request, Response
from remora.wire.executable_calls import (
    DIGEST_BYTES,
    EXECUTABLE_GLOBAL,
    EXECUTABLE_LOAD,
    MAX_ARTIFACT,
    Absent,
    ExecutableGlobal,
    ExecutableLoad,
)
from remora.wire.execute import Announced, Changed, Execute
from remora.wire.export_calls import EXECUTABLE_EXPORTS, MAX_EXPORTS, ExecutableExports, ExportEntry, Exports
from remora.wire.extension import EXTENSION, Extend
from remora.wire.file_calls import FILE_OPEN, FILE_REGISTER, FileOpen, FileRegister, Opened
from remora.wire.file_commands import FILE_READ, FILE_WRITE, FileRange
from remora.wire.memory_calls import (
    PHYSICAL_ALLOCATE,
    VIRTUAL_PROTECT,
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
from remora.wire.profile import MAX_KIND, ProfileRecord, Records, Taken
from remora.wire.profile_calls import (
    CLOCK_READ,
    PROFILE_BEGIN,
    PROFILE_END,
    PROFILE_FLUSH,
    ClockIs,
    ClockRead,
    ProfileBegin,
    ProfileEnd,
    ProfileFlush,
)
from remora.wire.sharing_calls import MAX_SEGMENT, SEGMENT_OPEN, SegmentOpen, SegmentOpened


def number(bits, least=0):
    return st.integers(least, (1 << bits) - 1)


u64, positive = number(64), number(64, 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
errors = st.builds(error_from_status, st.sampled_from([code for code in Status if code]), texts, texts)


def canonical(kind):
    return st.builds(make_id, st.just(kind), st.integers(0, MAX_GENERATION), st.integers(0, MAX_SLOT), number(8))


def provisional(kind):
    return st.builds(make_provisional, st.just(kind), st.integers(1, MAX_COUNTER))


def pairs(second, least=0):
    """(axis, epoch) pairs, ascending by axis."""
    entries = st.dictionaries(u64, second, min_size=least, max_size=MAX_FRONTIER)
    return entries.map(lambda table: tuple(sorted(table.items())))


capabilities = st.integers(0, CAPABILITIES)
tokens = st.binary(min_size=16, max_size=16)
heaps = st.builds(HeapEntry, texts, u64, u64, st.integers(0, 63).map(lambda bit: 1 << bit))
devices = st.builds(
    DeviceEntry,
    texts,
    texts,
    st.lists(st.tuples(texts, texts), max_size=4).map(tuple),
    st.lists(heaps, max_size=3).map(tuple),
    st.integers(1, 16),
    st.just(0) | st.integers(0, 30).map(lambda bit: 1 << bit),
    st.lists(st.tuples(texts.filter(bool), st.lists(texts, max_size=3).map(tuple)), max_size=2).map(tuple),
)
BOOTSTRAP = st.one_of(
    st.builds(Hello, capabilities, capabilities, number(8), pairs(u64), texts, st.integers(1, MAX_BULK)),
    st.builds(
        Accept,
        positive,
        tokens,
        capabilities,
        number(8),
        pairs(st.just(0)),
        number(32, 1),
        st.integers(bulk.MIN_STAGING, bulk.MAX_STAGING),
        st.lists(devices, min_size=1, max_size=3).map(tuple),
        st.integers(1, MAX_BULK),
    ),
    st.builds(Reject, errors),
    st.builds(Join, positive, tokens, st.sampled_from(LANES)),
    st.builds(Joined, positive, st.sampled_from(LANES)),
)

_new_kernels = provisional(ResourceType.EXECUTABLE)
_targets = st.tuples(texts, texts)
_manifests = st.binary(max_size=64)
_constants = st.lists(number(32), max_size=4).map(tuple)
inline_loads = st.binary(min_size=1, max_size=64).flatmap(
    lambda data: st.builds(
        ExecutableLoad,
        _new_kernels,
        number(16),
        _targets,
        _manifests,
        st.just(len(data)),
        st.just(data),
        constants=_constants,
    )
)
_elsewhere = (_new_kernels, number(16), _targets, _manifests, st.integers(1, MAX_ARTIFACT))
bulk_loads = st.builds(ExecutableLoad, *_elsewhere, transfer_id=positive, constants=_constants)
digest_loads = st.builds(
    ExecutableLoad, *_elsewhere, digest=st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES), constants=_constants
)
loads = inline_loads | bulk_loads | digest_loads
globals_ = st.builds(ExecutableGlobal, canonical(ResourceType.EXECUTABLE), texts)
exports = st.builds(ExecutableExports, canonical(ResourceType.EXECUTABLE), number(32))
_entries = st.builds(ExportEntry, texts, number(16), number(16), st.tuples(number(32), number(32), number(32)))
_told = (
    st.lists(_entries, max_size=4)
    .map(tuple)
    .flatmap(lambda entries: st.builds(Exports, st.integers(len(entries), MAX_EXPORTS), st.just(entries)))
)

_spans = st.builds(recorded.Ref, positive, u64, u64, st.just(0))
_slots = st.builds(recorded.Ref, st.just(0), u64, u64 | st.just(recorded.OPEN), number(16))
refs = _spans | _slots
_patterns = st.sampled_from([1, 2, 4]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
_events = st.sampled_from([recorded.SIGNAL_EVENT, recorded.RESET_EVENT, recorded.WAIT_EVENT])
_grids = st.tuples(number(32), number(32), number(32))
records = st.one_of(
    st.builds(recorded.RecordedBarrier),
    st.builds(recorded.RecordedEvent, _events, u64),
    st.builds(
        recorded.RecordedFill, refs, st.sampled_from([1, 2, 4]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
    ),
    st.builds(recorded.RecordedUpdate, refs, st.binary(max_size=64)),
    st.builds(recorded.RecordedCopy, refs, refs, u64),
    st.builds(recorded.RecordedDispatch, u64, number(32), _grids, st.lists(refs, max_size=4).map(tuple), st.binary(max_size=32)),
    st.builds(recorded.RecordedIndirect, u64, number(32), refs, st.lists(refs, max_size=4).map(tuple), st.binary(max_size=32)),
    st.builds(recorded.RecordedLabel, texts),
)
streams = st.lists(records, max_size=6).map(recorded.encode_stream)
_new_recordings = provisional(ResourceType.COMMAND_BUFFER)
inline_uploads = streams.flatmap(
    lambda data: st.builds(
        CommandBufferUpload, _new_recordings, number(16), st.integers(0, 1 << 16), st.just(len(data)), st.just(data)
    )
)
bulk_uploads = st.builds(
    CommandBufferUpload,
    _new_recordings,
    number(16),
    st.integers(0, 1 << 16),
    st.integers(1, MAX_STREAM // 8).map(lambda words: 8 * words),
    st.just(b""),
    positive,
)
uploads = inline_uploads | bulk_uploads
_reservations, _physical = canonical(ResourceType.BUFFER), canonical(ResourceType.PHYSICAL_MEMORY)
memory = st.one_of(
    st.builds(VirtualReserve, provisional(ResourceType.BUFFER), number(16), u64),
    st.builds(PhysicalAllocate, provisional(ResourceType.PHYSICAL_MEMORY), number(16), u64),
    st.builds(VirtualMap, _reservations, st.lists(st.builds(Placed, u64, _physical, u64, u64), min_size=1, max_size=4).map(tuple)),
    st.builds(VirtualUnmap, _reservations, u64, u64),
    st.builds(VirtualProtect, _reservations, u64, u64, st.sampled_from([0, 1, 3])),
    st.builds(MemoryClose, _reservations | _physical),
)
_executables, _recordings = canonical(ResourceType.EXECUTABLE), canonical(ResourceType.COMMAND_BUFFER)
_new_files = provisional(ResourceType.FILE)
opens = st.builds(FileOpen, _new_files, number(16), st.integers(1, 3), st.just(False), texts.filter(bool)) | st.builds(
    FileOpen, _new_files, number(16), st.integers(2, 3), st.just(True), texts.filter(bool)
)
_opened = st.builds(Opened, canonical(ResourceType.FILE), u64)
opens |= st.builds(FileRegister, _new_files, number(16), st.integers(1, 3), u64, u64, texts)
responses = st.one_of(
    st.builds(Response, number(32, 1), st.just(EXECUTABLE_EXPORTS), _told | errors),
    st.builds(Response, number(32, 1), st.just(EXECUTABLE_GLOBAL), st.builds(Loaded, canonical(ResourceType.BUFFER)) | errors),
    st.builds(Response, number(32, 1), st.just(EXECUTABLE_LOAD), st.builds(Loaded, _executables) | st.just(Absent()) | errors),
    st.builds(Response, number(32, 1), st.just(COMMAND_BUFFER_UPLOAD), st.builds(Loaded, _recordings) | errors),
    st.builds(Response, number(32, 1), st.sampled_from([FILE_OPEN, FILE_REGISTER]), _opened | errors),
    st.builds(Response, number(32, 1), st.just(VIRTUAL_RESERVE), st.builds(Loaded, _reservations) | errors),
    st.builds(Response, number(32, 1), st.just(PHYSICAL_ALLOCATE), st.builds(Loaded, _physical) | errors),
    st.builds(Response, number(32, 1), st.just(VIRTUAL_PROTECT), st.just(Done()) | errors),
)
segments = st.builds(SegmentOpen, positive)
responses |= st.builds(
    Response, number(32, 1), st.just(SEGMENT_OPEN), st.builds(SegmentOpened, st.integers(1, MAX_SEGMENT), u64, u64) | errors
)
_numbers = number(32, 1)
profile_calls = st.one_of(
    st.builds(ProfileBegin, _numbers, number(16)),
    st.builds(ProfileFlush, _numbers),
    st.builds(ProfileEnd, _numbers),
    st.builds(ClockRead),
)
profile_answers = st.one_of(
    st.builds(Response, _numbers, st.sampled_from([PROFILE_BEGIN, PROFILE_FLUSH, PROFILE_END]), st.builds(Done) | errors),
    st.builds(Response, _numbers, st.just(CLOCK_READ), st.builds(ClockIs, u64, u64) | errors),
)
_times = st.lists(u64, min_size=3, max_size=3).map(sorted)
_ran = st.tuples(st.integers(0, MAX_KIND), st.booleans(), number(16), texts, texts, _grids, number(32), u64, _times, u64).map(
    lambda at: ProfileRecord(*at[:8], *at[8], at[9])
)
profile_records = st.builds(Records, _numbers, positive, u64, st.lists(_ran, min_size=1, max_size=4).map(tuple))

CONTROL = st.one_of(
    st.builds(Ping, u64),
    st.builds(Pong, u64),
    st.builds(Goaway, errors),
    st.builds(Failure, errors),
    st.builds(Request, number(32, 1), loads | globals_ | exports | uploads | opens | memory | profile_calls | segments),
    responses,
    profile_answers,
    profile_records,
    st.builds(Taken, _numbers, positive),
)

ranges = st.tuples(u64, u64, u64)
_fills = st.tuples(u64, u64, number(32), st.sampled_from([1, 2, 4])).flatmap(
    lambda at: st.builds(commands.Fill, *map(st.just, (at[0], at[1], at[2] * at[3])), st.binary(min_size=at[3], max_size=at[3]))
)
_updates = st.tuples(u64, u64, st.binary(max_size=64)).map(lambda at: commands.Update(at[0], at[1], len(at[2]), memoryview(at[2])))
_transfers = st.builds(commands.Transfer, u64, u64, u64, positive)
_dispatches = st.builds(
    commands.Dispatch,
    u64,
    number(32),
    st.tuples(number(32), number(32), number(32)),
    st.lists(ranges, max_size=4).map(lambda spans: tuple(field for span in spans for field in span)),
    st.binary(max_size=32),
)
_bindings = st.dictionaries(number(32), ranges, max_size=3).map(
    lambda table: tuple((position, *table[position]) for position in sorted(table))
)
_changes = st.lists(
    st.builds(Changed, number(32), st.none() | _grids, st.none() | st.binary(max_size=20), _bindings),
    max_size=3,
    unique_by=lambda patch: patch.record,
).map(lambda patches: tuple(sorted(patches, key=lambda patch: patch.record)))
_tables = st.lists(ranges, max_size=3).map(tuple)
_executes = st.one_of(
    st.builds(Execute, positive, _tables, _changes, st.just(memoryview(b""))),
    st.builds(Execute, st.just(0), _tables, _changes, streams.map(memoryview)),
    st.builds(Announced, positive, positive, st.integers(1, 1 << 16), st.just(1), st.integers(24, 1 << 20), st.just(0)),
)
_file_ranges = st.builds(FileRange, u64, u64, number(62), positive, number(62), st.just(0)) | st.builds(
    FileRange, u64, u64, number(62, 1), st.just(0), st.just(0), number(63, 1)
)
bodies = {
    FILE_READ: _file_ranges,
    FILE_WRITE: _file_ranges,
    commands.EXECUTE: _executes,
    commands.BARRIER: st.none(),
    commands.FILL: _fills,
    commands.UPDATE: _updates,
    commands.COPY: st.builds(commands.Copy, u64, u64, u64, u64, u64),
    commands.LOCATE: st.builds(commands.Range, u64, u64, u64),
    commands.READ: st.builds(commands.Range, u64, u64, st.integers(0, commands.MAX_INLINE)),
    commands.UPLOAD: _transfers,
    commands.DOWNLOAD: _transfers,
    commands.DISPATCH: _dispatches,
    commands.DISPATCH_INDIRECT: st.builds(
        commands.DispatchIndirect, u64, u64, _dispatches.map(lambda body: body._replace(grid=(0, 0, 0)))
    ),
    EXTENSION: st.builds(Extend, texts.filter(bool), number(32), st.binary(max_size=40), st.lists(ranges, max_size=3).map(tuple)),
    commands.ALLOCA: u64,
    commands.DEALLOCA: u64,
}
operations = st.one_of(*(st.tuples(st.just(op), body) for op, body in bodies.items()))
_commands = st.tuples(operations, u64, positive, pairs(positive)).map(
    lambda at: (queue.COMMAND, at[0][0], at[1], at[2], at[3], at[0][1])
)
_new_buffers = provisional(ResourceType.BUFFER)
_names = st.lists(st.tuples(_new_buffers, canonical(ResourceType.BUFFER)), max_size=4).map(tuple)
_advances = st.tuples(st.just(queue.ADVANCE), u64, u64, _names, st.none() | errors).filter(
    lambda value: value[2] or (value[3] and value[4] is None)
)
_results = st.tuples(st.just(queue.RESULT), u64, positive, st.binary(max_size=64).map(memoryview))
_new_events = provisional(ResourceType.EVENT)
_answered = [queue.EVENT_QUERY, queue.EVENT_WAIT]
_asks = st.one_of(
    st.tuples(st.just(queue.EVENT), st.just(queue.EVENT_CREATE), number(16), _new_events, st.just(0)),
    st.tuples(st.just(queue.EVENT), st.sampled_from([queue.EVENT_SIGNAL, queue.EVENT_RESET]), st.just(0), _new_events, st.just(0)),
    st.tuples(st.just(queue.EVENT), st.sampled_from(_answered), st.just(0), _new_events, positive),
)
QUEUE = st.one_of(
    _commands,
    st.tuples(st.just(queue.ALLOCATE), number(16), _new_buffers, u64, st.booleans()),
    st.tuples(st.just(queue.RELEASE), u64, st.lists(u64, min_size=1, max_size=8).map(tuple)),
    _advances,
    _results,
    _asks,
    st.tuples(st.just(queue.STATE), st.sampled_from(_answered), _new_events, positive, st.booleans() | errors),
    st.tuples(st.just(queue.UNNAMED), _new_buffers, errors),
)

_sizes = st.integers(0, bulk.MAX_TRANSFER)
BULK = st.one_of(
    st.tuples(st.sampled_from([bulk.START, bulk.COMPLETE, bulk.CREDIT, bulk.RETURN]), positive, _sizes, st.just(b"")),
    st.tuples(
        st.just(bulk.DATA),
        positive,
        st.integers(0, (bulk.MAX_TRANSFER // bulk.CHUNK) - 1).map(lambda index: index * bulk.CHUNK),
        st.binary(min_size=1, max_size=64),
    ),
    st.tuples(st.just(bulk.ABORT), positive, st.just(0), errors),
    st.tuples(st.just(bulk.LEND), positive, _sizes, st.builds(bulk.Lent, positive, st.integers(bulk.MIN_LENT, bulk.MAX_TRANSFER))),
    st.tuples(st.just(bulk.GONE), positive, st.just(0), st.just(b"")),
)

#: lane -> a strategy for its messages.
LANES = {"bootstrap": BOOTSTRAP, "control": CONTROL, "queue": QUEUE, "bulk": BULK}
