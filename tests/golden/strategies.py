"""Hypothesis strategies for every message of the wire, by lane, in the form that `codecs` takes."""

from hypothesis import strategies as st

from remora.base.frontier import MAX_FRONTIER
from remora.base.ids import MAX_COUNTER, MAX_GENERATION, MAX_SLOT, ResourceType, make_id, make_provisional
from remora.errors import Status, error_from_status
from remora.wire import bulk, commands, queue
from remora.wire import command_buffer as recorded
from remora.wire.bootstrap import CAPABILITIES, Accept, Hello, Join, Joined, Reject
from remora.wire.calls import (
    COMMAND_BUFFER_UPLOAD,
    EXECUTABLE_LOAD,
    MAX_ARTIFACT,
    MAX_STREAM,
    CommandBufferUpload,
    ExecutableLoad,
    Loaded,
)
from remora.wire.catalog import DeviceEntry, HeapEntry
from remora.wire.control import Failure, Goaway, Ping, Pong, Request, Response
from remora.wire.execute import Announced, Changed, Execute


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
)
BOOTSTRAP = st.one_of(
    st.builds(Hello, capabilities, capabilities, number(8), pairs(u64), texts),
    st.builds(
        Accept,
        positive,
        tokens,
        capabilities,
        number(8),
        pairs(st.just(0)),
        number(32, 1),
        st.lists(devices, min_size=1, max_size=3).map(tuple),
    ),
    st.builds(Reject, errors),
    st.builds(Join, positive, tokens, st.integers(1, 2)),
    st.builds(Joined, positive, st.integers(1, 2)),
)

_new_kernels = provisional(ResourceType.EXECUTABLE)
_targets = st.tuples(texts, texts)
_manifests = st.binary(max_size=64)
inline_loads = st.binary(min_size=1, max_size=64).flatmap(
    lambda data: st.builds(ExecutableLoad, _new_kernels, number(16), _targets, _manifests, st.just(len(data)), st.just(data))
)
bulk_loads = st.builds(
    ExecutableLoad,
    _new_kernels,
    number(16),
    _targets,
    _manifests,
    st.integers(1, MAX_ARTIFACT),
    st.just(b""),
    positive,
)
loads = inline_loads | bulk_loads

_spans = st.builds(recorded.Ref, positive, u64, u64, st.just(0))
_slots = st.builds(recorded.Ref, st.just(0), u64, u64 | st.just(recorded.OPEN), number(16))
refs = _spans | _slots
_patterns = st.sampled_from([1, 2, 4]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
_events = st.sampled_from([recorded.SIGNAL_EVENT, recorded.RESET_EVENT, recorded.WAIT_EVENT])
_grids = st.tuples(number(32), number(32), number(32))
records = st.one_of(
    st.builds(recorded.RecordedEvent, _events, u64),
    st.builds(
        recorded.RecordedFill, refs, st.sampled_from([1, 2, 4]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
    ),
    st.builds(recorded.RecordedUpdate, refs, st.binary(max_size=64)),
    st.builds(recorded.RecordedCopy, refs, refs, u64),
    st.builds(recorded.RecordedDispatch, u64, number(32), _grids, st.lists(refs, max_size=4).map(tuple), st.binary(max_size=32)),
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
_executables, _recordings = canonical(ResourceType.EXECUTABLE), canonical(ResourceType.COMMAND_BUFFER)
responses = st.one_of(
    st.builds(Response, number(32, 1), st.just(EXECUTABLE_LOAD), st.builds(Loaded, _executables) | errors),
    st.builds(Response, number(32, 1), st.just(COMMAND_BUFFER_UPLOAD), st.builds(Loaded, _recordings) | errors),
)
CONTROL = st.one_of(
    st.builds(Ping, u64),
    st.builds(Pong, u64),
    st.builds(Goaway, errors),
    st.builds(Failure, errors),
    st.builds(Request, number(32, 1), loads | uploads),
    responses,
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
bodies = {
    commands.EXECUTE: _executes,
    commands.BARRIER: st.none(),
    commands.FILL: _fills,
    commands.UPDATE: _updates,
    commands.COPY: st.builds(commands.Copy, u64, u64, u64, u64, u64),
    commands.READ: st.builds(commands.Range, u64, u64, st.integers(0, commands.MAX_INLINE)),
    commands.UPLOAD: _transfers,
    commands.DOWNLOAD: _transfers,
    commands.DISPATCH: _dispatches,
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
    st.tuples(st.just(queue.ALLOCATE), number(16), _new_buffers, u64),
    st.tuples(st.just(queue.RELEASE), u64, st.lists(u64, min_size=1, max_size=8).map(tuple)),
    _advances,
    _results,
    _asks,
    st.tuples(st.just(queue.STATE), st.sampled_from(_answered), _new_events, positive, st.booleans() | errors),
    st.tuples(st.just(queue.UNNAMED), _new_buffers, errors),
)

_sizes = st.integers(0, bulk.MAX_TRANSFER)
BULK = st.one_of(
    st.tuples(st.sampled_from([bulk.START, bulk.COMPLETE, bulk.CREDIT]), positive, _sizes, st.just(b"")),
    st.tuples(
        st.just(bulk.DATA),
        positive,
        st.integers(0, (bulk.MAX_TRANSFER // bulk.CHUNK) - 1).map(lambda index: index * bulk.CHUNK),
        st.binary(min_size=1, max_size=64),
    ),
    st.tuples(st.just(bulk.ABORT), positive, st.just(0), errors),
)

#: lane -> a strategy for its messages.
LANES = {"bootstrap": BOOTSTRAP, "control": CONTROL, "queue": QUEUE, "bulk": BULK}
