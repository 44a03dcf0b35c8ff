"""H06, H20, H32: kill -9 of either side while the client copies to or from memory of the server, and while that is mapped."""

import signal
from time import monotonic

import pytest
from tests.faults.deadly import SCRIPT
from tests.faults.processes import SOON, Service
from tests.faults.test_killed_in_each_state import KNOWN, RUN, DeadlyService, check_unchanged, held

import remora
from remora.testing.cts.compare import same

#: What a lost server is, as its client hears it.
LOST = (remora.BrokenError, remora.DeviceLostError)
#: Two pieces.
SIZE = 17 << 20

CLIENT_DIES = {
    "before an upload is copied": ("remora.link.borrowing:Borrowed.copy", 1),
    "an upload is half copied": ("remora.link.borrowing:Borrowed.copy", 2),
    "before the server knows of an upload": ("remora.link.bulk:BulkLane._on_copied", 1),
    "a download is half copied": ("remora.link.borrowing:Borrowed.copy", 4),
    "before the server knows of a download": ("remora.link.bulk:BulkLane._on_copied", 2),
    "memory is copied in place": ("remora.drivers.remote.buffer:RemoteBuffer._copy", 1),
    "the memory is asked for": ("remora.drivers.remote.segments:Segments._open", 1),
    "the memory is mapped": ("remora.drivers.remote.segments:_map", 1),
}
SERVER_DIES = {
    "before memory is lent": ("remora.link.bulk:BulkLane.lend", 1),
    "memory is asked for": ("remora.server.sharing:Sharing.open", 1),
    "an upload is copied": ("remora.link.bulk:BulkLane._on_return", 1),
    "a download is copied": ("remora.link.bulk:BulkLane._on_return", 2),
}


@pytest.fixture
def fuse(tmp_path):
    path = tmp_path / "fuse"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("state", "shared"),
    [*((state, False) for state in CLIENT_DIES), ("an upload is half copied", True), ("the memory is mapped", True)],
)
def test_h06_the_client_dies_with_a_loan_and_the_server_lets_go(serve, client, fuse, until, works, state, shared):
    server = serve("unix", shared=shared)
    works(server.uri)
    server.wait_for("session 1 ended", SOON)
    until(lambda: not server.session_pids() and held(server.pid)[1] == 1)
    before = held(server.pid)
    target, nth = CLIENT_DIES[state]
    program = client(RUN, SCRIPT, fuse, target, nth, "client", server.uri, SIZE)
    assert program.process.wait(2 * SOON) == -signal.SIGKILL, program.lines.seen  # its start is no part of what is measured
    begin = monotonic()
    server.wait_for("session 2 ended", SOON)
    check_unchanged(server, before, until, works)
    assert monotonic() - begin < KNOWN
    assert not fuse.exists()


@pytest.mark.parametrize("state", SERVER_DIES)
def test_h05_the_server_dies_with_a_loan_out_and_the_client_knows_why(tmp_path, fuse, until, works, state):
    target, nth = SERVER_DIES[state]
    with DeadlyService(fuse, target, nth, bind=f"unix://{tmp_path}/s") as server:
        with remora.open(server.uri) as device:
            buffer = device.allocate(SIZE)
            begin = monotonic()
            with pytest.raises(LOST, match="SIGKILL"):  # the submission may hear of it first
                device.queue.update(buffer, bytes(SIZE))
                device.queue.read(buffer, bytearray(SIZE)).wait(SOON)
            assert monotonic() - begin < KNOWN
            with pytest.raises(LOST):
                device.queue.update(buffer, bytes(SIZE)).wait(SOON)
            until(lambda: device.queue.timeline.failure is not None)
        assert not fuse.exists()
        until(lambda: not server.session_pids())
        works(server.uri)


def test_h20_a_mapping_outlives_its_server(tmp_path):
    """It stays what it was, and may be written: nobody is killed by it. What needs the server says that it is gone."""
    data = bytes(range(256)) * (SIZE >> 8)
    with Service(bind=f"unix://{tmp_path}/s") as server, remora.open(server.uri) as device:
        buffer = device.upload(data)
        mapping = buffer.map(timeout=SOON)
        read_only = device.upload(data).map(remora.Access.READ, timeout=SOON)
        server.kill()
        with pytest.raises(LOST):
            device.queue.barrier().wait(SOON)
        assert same(mapping.view, data)
        mapping.view[:] = bytes(SIZE)
        assert same(mapping.view, bytes(SIZE))
        with pytest.raises(LOST):
            mapping.flush(timeout=SOON)
        with pytest.raises(LOST):
            mapping.invalidate(timeout=SOON)
        with pytest.raises(LOST):
            mapping.close()
        mapping.close()
        assert same(read_only.view, data)
        read_only.close()
        buffer.close()
