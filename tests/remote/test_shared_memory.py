"""H20, H32: on one machine a mapping is the server's memory itself, and an upload or download is one copy that the client makes."""

import contextlib
import gc
import os
import random
import threading
from pathlib import Path

import pytest
from tests.faults.processes import wait_until
from tests.remote.raw import raw_client
from tests.remote.test_passed_files import Forward

import remora
from remora import samples
from remora.errors import NotFoundError, PeerError, UnsupportedError
from remora.hal.buffer import Access
from remora.hal.operation import OperationKind
from remora.link.borrowing import copy_in_pieces
from remora.session.events import Advanced, Named, Responded
from remora.session.state import Lane
from remora.testing.cts.compare import same
from remora.testing.server import ServerProcess, SharedServer
from remora.wire import commands
from remora.wire.bootstrap import CAPABILITY_SHARED
from remora.wire.bulk import MIN_LENT, RETURN, encode_bulk
from remora.wire.sharing_calls import SegmentOpen

LONG = 20.0
MIB = 1 << 20
#: Above every size class that shares a file with others, and below.
SIZES = [MIN_LENT, 3 * MIB + 5, 9 * MIB]


def blob(size, seed=0):
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="module", params=["unix", "shm"])
def near(request, tmp_path_factory):
    """A server on this machine that passes descriptors."""
    with ServerProcess(bind=f"{request.param}://{tmp_path_factory.mktemp('near')}/s") as server:
        yield server


@pytest.fixture
def device(near):
    with remora.open(near.uri) as device:
        yield device


@pytest.fixture(scope="module")
def unix(tmp_path_factory):
    with ServerProcess(bind=f"unix://{tmp_path_factory.mktemp('unix')}/s") as server:
        yield server


@contextlib.contextmanager
def moves_less_than(device, size):
    before = device.link_statistics()
    yield
    after = device.link_statistics()
    assert after.bytes_sent - before.bytes_sent + after.bytes_received - before.bytes_received < size


def mapped():
    """Bytes of device memory that this process has mapped."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("/memfd:remora (deleted)"):
            start, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(start, 16)
    return total


# -- transfers --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_h32_no_byte_of_a_transfer_goes_over_the_connection(device, size):
    data = blob(size)
    with device.allocate(size + 64) as buffer, moves_less_than(device, 4096):
        device.queue.update(buffer, data, 64)
        assert same(buffer.read(64, timeout=LONG), data)


def test_h32_transfers_keep_their_place_on_the_queue(device):
    """Uploads, kernels and downloads of one buffer, all in flight at once: each sees what those before it did, and no more."""
    kernel = device.load(samples.load("vector"))["fill_index"]
    count = MIN_LENT // 2
    index = b"".join(number.to_bytes(4, "little") for number in range(count))
    with device.allocate(4 * count) as buffer:
        rooms = []
        for turn in range(8):
            data = bytes([turn + 1]) * (4 * count)
            for step in ("upload", "dispatch"):
                if step == "upload":
                    device.queue.update(buffer, data)
                else:
                    device.queue.dispatch(kernel, kernel.grid_for(count), [buffer], (count, 0))
                room = bytearray(4 * count)
                device.queue.read(buffer, room)
                rooms.append((room, data if step == "upload" else index))
        device.queue.barrier().wait(LONG)
        for room, wanted in rooms:
            assert same(room, wanted)


def test_h32_transfers_of_several_queues_and_threads(device):
    def work(number):
        queue = device.queues[number % len(device.queues)]
        with device.allocate(2 * MIB) as buffer:
            for turn in range(6):
                data, room = blob(MIB, 100 * number + turn), bytearray(MIB)
                queue.update(buffer, data, MIB * (turn % 2))
                queue.read(buffer, room, MIB * (turn % 2)).wait(LONG)
                results.append(room == data)

    results = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert results == [True] * 24


def test_h32_a_buffer_that_is_closed_at_once_is_not_reused_before_its_transfer_is_done(device):
    """The memory belongs to the operations in flight: another buffer of the size gets other memory, or waits its turn."""
    rooms = []
    for turn in range(20):
        data, room = bytes([turn + 1]) * MIB, bytearray(MIB)
        buffer = device.allocate(MIB)
        device.queue.update(buffer, data)
        device.queue.read(buffer, room)
        buffer.close()
        rooms.append((room, data))
    device.queue.barrier().wait(LONG)
    assert all(same(room, data) for room, data in rooms)


def test_h32_memory_of_a_queue_is_lent_as_well(device):
    data = blob(MIB)
    buffer, _ = device.queue.allocate(MIB)
    room = bytearray(MIB)
    with moves_less_than(device, 4096):
        device.queue.update(buffer, data)
        device.queue.read(buffer, room)
        device.queue.deallocate(buffer).wait(LONG)
    assert same(room, data)


@pytest.mark.parametrize("queue", [0, 1])
def test_h05_what_stands_behind_a_failure_is_neither_lent_nor_touched(device, queue):
    faults = device.load(samples.load("faults"))
    with device.allocate(MIB) as buffer:
        room = bytearray(MIB)
        other = device.queues[queue]
        gate = device.semaphore()
        device.queues[0].barrier(wait=gate.at(1))
        failed = device.queues[0].dispatch(faults["fail"], (1, 1, 1), [], (7,))
        upload = other.update(buffer, b"\1" * MIB, wait=failed)
        download = other.read(buffer, room)
        gate.signal(1)
        for point in (upload, download):
            with pytest.raises(remora.DeviceError):
                point.wait(LONG)
        assert not any(room)


def test_h20_memory_that_is_in_no_file_travels(device):
    """A reservation is pages of several files: the same calls, and the bytes go over the connection."""
    page = device.info.page_size
    size = -(-MIB // page) * page
    data = blob(size)
    with device.reserve(size) as reservation, device.physical(size) as physical:
        reservation.map(0, physical)
        reservation.protect(0, size, Access.READ_WRITE)
        before = device.link_statistics().bytes_sent
        reservation.buffer.write(data, timeout=LONG)
        wait_until(lambda: device.link_statistics().bytes_sent - before > size)
        assert same(reservation.buffer.read(timeout=LONG), data)
        with reservation.buffer.map(Access.READ, timeout=LONG) as mapping:
            assert same(mapping.view, data)
        reservation.unmap(0, size)


def test_h27_a_callback_of_a_download_closes_the_device(near):
    """It may run on the thread that copies."""
    device = remora.open(near.uri)
    buffer, room, closed = device.allocate(MIB), bytearray(MIB), threading.Event()
    device.queue.fill(buffer, b"\4")

    def close():
        device.close()
        closed.set()

    device.queue.read(buffer, room).on_done(close)
    device.queue.flush()
    assert closed.wait(LONG)
    assert same(room, b"\4" * MIB)
    left = [thread for thread in threading.enumerate() if near.addresses[0] in thread.name]
    for thread in left:  # the one that called back is on its way out
        thread.join(LONG)
        assert not thread.is_alive()


@pytest.mark.parametrize("size", SIZES)
def test_h32_write_and_read_are_one_round_trip_and_one_copy(device, size):
    """In the calling thread, after what was submitted before: no transfer and no loan."""
    data, room = blob(size), bytearray(size)
    with device.allocate(size + 64) as buffer:
        buffer.write(bytes(size), timeout=LONG)  # maps the memory
        transfers, trips = device.host._transfers, device.link_statistics().round_trips
        with moves_less_than(device, 1024):
            device.queue.fill(buffer, b"\7")
            buffer.write(data, 64, timeout=LONG)
            device.queue.copy(buffer.view(64, 8), buffer.view(0, 8))
            buffer.read_into(room, 64, timeout=LONG)
        assert device.link_statistics().round_trips - trips == 2
        assert device.host._transfers == transfers
        assert room == data
        assert same(buffer.read(0, 64, timeout=LONG), data[:8] + b"\7" * 56)


@pytest.mark.parametrize("call", ["write", "read_into"])
def test_h20_memory_is_not_touched_before_its_turn(device, call):
    with device.allocate(MIB) as buffer:
        buffer.write(b"\1" * MIB, timeout=LONG)
        gate = device.semaphore()
        held = device.queue.barrier(wait=gate.at(1))
        room = bytearray(b"\2" * MIB)
        with pytest.raises(remora.DeadlineError):
            getattr(buffer, call)(room, timeout=0.01)
        gate.signal(1)
        held.wait(LONG)
        assert room == b"\2" * MIB
        assert same(buffer.read(timeout=LONG), b"\1" * MIB)


@pytest.mark.parametrize("call", ["write", "read_into"])
def test_h05_behind_a_failure_memory_is_neither_written_nor_read(device, call):
    faults = device.load(samples.load("faults"))
    with device.allocate(MIB) as buffer, device.allocate(MIB) as other:
        for each in (buffer, other):
            each.write(b"\1" * MIB, timeout=LONG)
        with buffer.map(remora.Access.READ, timeout=LONG) as mapping:
            device.queue.dispatch(faults["fail"], (1, 1, 1), [], (7,))
            room = bytearray(b"\2" * MIB)
            with pytest.raises(remora.DeviceError):
                getattr(buffer, call)(room, timeout=LONG)
            assert room == b"\2" * MIB
            assert same(mapping.view, b"\1" * MIB)


@pytest.mark.parametrize("end", ["close", "deallocate", "drop"])
def test_h15_memory_that_a_thread_copies_to_is_nobody_elses_though_its_buffer_ends(device, monkeypatch, end):
    begun, go = threading.Event(), threading.Event()

    def slow(target, source, courtesy):
        begun.set()
        assert go.wait(LONG)
        copy_in_pieces(target, source, courtesy)

    monkeypatch.setattr("remora.drivers.remote.buffer.copy_in_pieces", slow)
    buffers = [device.allocate(MIB)]
    thread = threading.Thread(target=buffers[0].write, args=(b"\1" * MIB,))
    thread.start()
    assert begun.wait(LONG)
    if end == "close":
        buffers[0].close()
    elif end == "deallocate":
        device.queue.deallocate(buffers[0]).wait(LONG)
    buffers.clear()
    with device.allocate(MIB) as other:
        device.queue.fill(other, b"\2").wait(LONG)
        go.set()
        thread.join(LONG)
        room = bytearray(MIB)
        device.queue.read(other, room).wait(LONG)
        assert room == b"\2" * MIB
    wait_until(lambda: device.statistics().buffers == 0, device.statistics)


def test_h24_while_a_profile_is_on_a_copy_is_an_operation_that_it_shows(device):
    records = []
    with device.allocate(MIB) as buffer, device.profile(records.extend) as profile:
        buffer.write(bytes(MIB), timeout=LONG)
        buffer.read(timeout=LONG)
        profile.flush(LONG)
    assert [(record.kind, record.bytes) for record in records] == [(OperationKind.UPDATE, MIB), (OperationKind.READ, MIB)]


@pytest.mark.parametrize("call", ["write", "read_into"])
def test_h03_a_wrong_range_and_a_closed_buffer_are_refused_before_anything_is_sent(device, call):
    buffer = device.upload(bytes(MIB))
    commands_before = device.link_statistics().commands
    with pytest.raises(remora.UsageError, match="not inside"):
        getattr(buffer, call)(bytearray(MIB), 1)
    buffer.close()
    with pytest.raises(remora.ClosedError):
        getattr(buffer, call)(bytearray(MIB))
    assert device.link_statistics().commands == commands_before


# -- mappings ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 5000, *SIZES])
def test_h20_a_mapping_is_the_memory_itself(device, size):
    """Both sides see each byte as it is written, without flush and without a byte on the connection."""
    data = blob(size)
    with device.allocate(size) as buffer, moves_less_than(device, 4096):
        with buffer.map(Access.READ_WRITE, timeout=LONG) as mapping:
            mapping.view[:] = data
            device.queue.fill(buffer.view(size // 2, 1), b"\xee").wait(LONG)
            assert mapping.view[size // 2] == 0xEE
            mapping.view[size // 2] = data[size // 2]
        with buffer.map(Access.READ, timeout=LONG) as mapping:
            assert mapping.view.readonly
            assert same(mapping.view, data)


def test_h20_a_part_of_a_buffer_is_mapped_where_it_is(device):
    with device.allocate(3 * MIB) as buffer:
        device.queue.fill(buffer, b"\7")
        with buffer.map(Access.READ_WRITE, MIB + 3, 10, timeout=LONG) as mapping:
            assert bytes(mapping.view) == b"\7" * 10
            mapping.view[:] = b"0123456789"
        assert bytes(buffer.read(MIB + 1, 14, timeout=LONG)) == b"\7\0070123456789\7\7"


def test_h20_a_mapping_of_a_late_buffer(device):
    buffer, ready = device.queue.allocate(MIB)
    ready.wait(LONG)
    with moves_less_than(device, 4096), buffer.map(Access.WRITE | Access.DISCARD, timeout=LONG) as mapping:
        mapping.view[:] = b"\3" * MIB
    room = bytearray(MIB)
    device.queue.read(buffer, room).wait(LONG)
    assert room == b"\3" * MIB
    device.queue.deallocate(buffer).wait(LONG)


@pytest.mark.parametrize("size", [1000, MIB])
def test_h20_switched_off_it_is_a_copy(unix, size):
    data = blob(size)
    with remora.open(f"{unix.uri}?shared=0") as device, device.allocate(size) as buffer:
        assert not device.host.link.session.accepted.capabilities & CAPABILITY_SHARED
        before = device.link_statistics()
        with buffer.map(Access.WRITE | Access.DISCARD, timeout=LONG) as mapping:
            mapping.view[:] = data
        assert same(buffer.read(timeout=LONG), data)
        wait_until(lambda: device.link_statistics().bytes_sent - before.bytes_sent > size)
        after = device.link_statistics()
        assert after.bytes_received - before.bytes_received > size
        assert device.host.segments is None


def test_h20_what_shared_may_be(unix):
    with pytest.raises(remora.UsageError, match="shared=yes: give 1"):
        remora.open(f"{unix.uri}?shared=yes")


def test_h20_over_tcp_nothing_is_shared(server):
    with remora.open(server.uri) as device:
        assert device.host.segments is None


def test_h20_a_device_without_memory_files_copies(tmp_path):
    with ServerProcess(device="null", bind=f"unix://{tmp_path}/s") as server, remora.open(server.uri) as device:
        data = blob(MIB)
        with device.allocate(MIB) as buffer:
            buffer.write(data, timeout=LONG)
            with buffer.map(Access.READ, timeout=LONG) as mapping:
                assert same(mapping.view, data)
            trips = device.link_statistics().round_trips
            buffer.write(data, timeout=LONG)
            assert device.link_statistics().round_trips - trips == 1, "the server is not asked again where its memory is"
        assert device.host.segments is not None
        assert not device.host.segments._mapped


def test_h20_a_forwarded_socket_drops_descriptors_and_the_bytes_travel(tmp_path):
    """As `ssh -L` does. Each file is asked for once; after that its buffers move as bytes without a question."""
    with ServerProcess(bind=f"unix://{tmp_path}/s"):
        forward = Forward(f"{tmp_path}/f", f"{tmp_path}/s")
        try:
            with remora.open(f"remote-unix://{tmp_path}/f") as device, device.allocate(MIB) as buffer:
                for turn in range(3):
                    data = blob(MIB, turn)
                    buffer.write(data, timeout=LONG)
                    assert same(buffer.read(timeout=LONG), data)
                    with buffer.map(timeout=LONG) as mapping:
                        assert same(mapping.view, data)
                        mapping.view[:3] = b"abc"
                    assert bytes(buffer.read(0, 3, timeout=LONG)) == b"abc"
                wait_until(lambda: device.link_statistics().bytes_sent > 6 * MIB)  # a send is counted when it returns
                assert list(device.host.segments._mapped.values()) == [None]
        finally:
            forward.close()


def test_h20_without_room_for_a_mapping_the_bytes_travel(unix, monkeypatch):
    def full(fd, size):
        raise OSError(12, "no room")

    monkeypatch.setattr("remora.drivers.remote.segments.SharedSegment", full)
    with remora.open(unix.uri) as device, device.allocate(MIB) as buffer:
        data = blob(MIB)
        buffer.write(data, timeout=LONG)
        assert same(buffer.read(timeout=LONG), data)
        with buffer.map(timeout=LONG) as mapping:
            assert same(mapping.view, data)
        files = Path("/proc/self/fd")
        assert not [fd for fd in files.iterdir() if fd.is_symlink() and "memfd:remora (" in str(fd.readlink())]


# -- reuse, and what is let go ----------------------------------------------------------------------------------------------------


def test_h20_many_buffers_are_in_few_files(unix):
    """Small ones share a file, which is asked for once; the memory of a closed one is used again, so it is warm on both sides."""
    with remora.open(unix.uri) as device:
        buffers = [device.allocate(MIN_LENT) for _ in range(6)]
        for number, buffer in enumerate(buffers):
            buffer.write(bytes([number]) * MIN_LENT, timeout=LONG)
        assert len(device.host.segments._mapped) == 1
        for turn in range(10):
            with device.allocate(16 * MIB) as large:
                large.write(blob(16 * MIB, turn), timeout=LONG)
            device.queue.wait_idle(LONG)
        assert len(device.host.segments._mapped) == 2
        trips = device.link_statistics().round_trips
        buffers[0].write(bytes(MIN_LENT), timeout=LONG)
        assert device.link_statistics().round_trips - trips <= 1
        assert [bytes(buffer.read(0, 1, timeout=LONG))[0] for buffer in buffers] == [0, 1, 2, 3, 4, 5]


def test_h20_what_the_server_gives_back_is_not_kept_here(unix):
    """Beyond what is kept warm a large buffer's file goes, and with it the mapping, unless a view of it is still there."""
    size = 160 * MIB
    with remora.open(unix.uri) as device:
        before = mapped()
        buffers = [device.allocate(size) for _ in range(3)]
        for buffer in buffers:
            buffer.write(b"\1" * MIN_LENT, timeout=LONG)
        assert mapped() - before >= 3 * size
        mapping = buffers[0].map(Access.READ, 0, 8, timeout=LONG)
        view = mapping.view
        mapping.close()
        for buffer in buffers:
            buffer.close()
        device.allocate(1).close()  # sends what was released before
        device.queue.wait_idle(LONG)
        wait_until(lambda: len(device.host.segments._mapped) <= 1, lambda: device.host.segments._mapped)
        assert bytes(view) == b"\1" * 8
        del view, mapping
        gc.collect()
        wait_until(lambda: mapped() - before < 2 * size, lambda: mapped() - before)
    wait_until(lambda: mapped() <= before, lambda: (mapped(), before))


# -- what a client cannot do, and does not see ------------------------------------------------------------------------------------


def test_h20_the_client_cannot_change_the_size_of_what_it_maps(unix):
    """A file that shrinks would kill the server at the next touch."""
    with remora.open(unix.uri) as device, device.allocate(MIB) as buffer:
        buffer.write(b"\5" * MIB, timeout=LONG)
        (fd,) = [
            int(entry.name)
            for entry in Path("/proc/self/fd").iterdir()
            if entry.is_symlink() and "memfd:remora (" in str(entry.readlink())
        ]
        for size in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        assert same(buffer.read(timeout=LONG), b"\5" * MIB)


@pytest.mark.parametrize("shared", [False, True], ids=["processes", "shared"])
def test_h20_sessions_share_no_memory_with_each_other(tmp_path, shared):
    with (
        ServerProcess(bind=f"unix://{tmp_path}/s", shared=shared) as server,
        remora.open(server.uri) as one,
        remora.open(server.uri) as other,
        one.allocate(MIB) as first,
        other.allocate(MIB) as second,
    ):
        first.write(b"\1" * MIB, timeout=LONG)
        second.write(b"\2" * MIB, timeout=LONG)
        (mine,) = one.host.segments._mapped.values()
        (theirs,) = other.host.segments._mapped.values()
        everything = bytes(mine.part(0, mine.size))
        assert everything.count(b"\1") == MIB
        assert b"\2" not in everything
        assert b"\1" not in bytes(theirs.part(0, theirs.size))


@pytest.fixture
def raw(unix):
    with raw_client(unix.uri, CAPABILITY_SHARED) as client:
        yield client


def answer_to(client, body):
    request = client.session.request(body)
    client.send(Lane.CONTROL)
    return client.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == request).body


def test_h25_there_is_no_segment_that_was_not_told(raw):
    for number in (1, 2, 1 << 40):
        assert isinstance(answer_to(raw, SegmentOpen(number)), NotFoundError)


def test_h25_a_return_that_nothing_was_lent_for_ends_the_session(raw):
    raw.carriers[Lane.BULK].send_all(encode_bulk(RETURN, 1, MIB), timeout=LONG)
    assert isinstance(raw.failed(), PeerError)


def test_h03_a_session_without_the_capability_locates_nothing(server):
    """The command fails its queue; nothing of the memory is told."""
    with raw_client(server.uri) as client:
        resource = client.session.allocate(0, 4096)
        client.send(Lane.QUEUE)
        client.until(Lane.QUEUE, lambda event: isinstance(event, Named) and event.provisional == resource)
        client.command(0, commands.LOCATE, commands.encode_range(resource, 0, 8))
        client.send(Lane.QUEUE)
        failed = client.until(Lane.QUEUE, lambda event: isinstance(event, Advanced) and event.failure is not None)
        assert isinstance(failed.failure, UnsupportedError)
        assert isinstance(answer_to(client, SegmentOpen(1)), NotFoundError)


def test_h25_a_place_outside_its_buffer_is_refused(raw):
    resource = raw.session.allocate(0, 4096)
    raw.command(0, commands.LOCATE, commands.encode_range(resource, 4000, 97))
    raw.send(Lane.QUEUE)
    failed = raw.until(Lane.QUEUE, lambda event: isinstance(event, Advanced) and event.failure is not None)
    assert "not inside 4096 bytes" in str(failed.failure)


def test_h20_in_one_process_it_works_as_well(tmp_path):
    """A shared server on a thread of this process, reached by a socket."""
    with SharedServer(bind=f"unix://{tmp_path}/s") as server, remora.open(server.uri) as device:
        data = blob(MIB)
        with device.upload(data) as buffer, buffer.map(timeout=LONG) as mapping:
            assert same(mapping.view, data)
