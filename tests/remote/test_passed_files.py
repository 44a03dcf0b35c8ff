"""H23: over a unix socket the server gets a file's descriptor, and the contents do not travel."""

import os
import socket
import threading
from pathlib import Path

import pytest
from tests.faults.processes import wait_until
from tests.remote.raw import raw_client

import remora
from remora.base.ids import ResourceType
from remora.errors import BusyError, Status, UnsupportedError, UsageError
from remora.session.events import Responded
from remora.session.state import Lane
from remora.testing.server import ServerProcess
from remora.wire.file_calls import FileRegister, Opened

LONG = 20.0
MIB = 1 << 20


@pytest.fixture(params=["unix", "shm"])
def near(request, tmp_path):
    """A server that can be reached by a socket in the file system."""
    with ServerProcess(bind=f"{request.param}://{tmp_path}/s", flags=("--session-resources", "8")) as server:
        yield server


def open_in(pid):
    """What is open in another process, sorted."""
    return sorted(str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink())


def test_h23_the_contents_do_not_travel(near, tmp_path):
    data = os.urandom(8 * MIB + 1)
    (tmp_path / "in").write_bytes(data)
    with remora.open(near.uri) as device, device.allocate(len(data)) as buffer:
        with device.open_file(tmp_path / "in") as file, device.open_file(tmp_path / "out", "w") as out:
            device.queue.read_file(file, 0, buffer)
            device.queue.write_file(buffer, out).wait(LONG)
        counts = device.link_statistics()
        assert counts.bytes_sent + counts.bytes_received < 64 << 10
    assert (tmp_path / "out").read_bytes() == data


def test_h23_over_tcp_they_do(server, tmp_path):
    (tmp_path / "in").write_bytes(bytes(MIB))
    with remora.open(server.uri) as device, device.allocate(MIB) as buffer, device.open_file(tmp_path / "in") as file:
        device.queue.read_file(file, 0, buffer).wait(LONG)
        wait_until(lambda: device.link_statistics().bytes_sent > MIB)


def test_h23_the_server_closes_its_copy(near, tmp_path):
    (tmp_path / "in").write_bytes(bytes(1000))
    with remora.open(near.uri) as device, device.allocate(1000) as buffer:
        device.queue.wait_idle(LONG)
        (pid,) = near.session_pids()
        before = open_in(pid)
        for _ in range(12):  # more than the session may have at once
            with device.open_file(tmp_path / "in") as file:
                device.queue.read_file(file, 0, buffer)
            device.queue.wait_idle(LONG)  # the queue lane has brought the release; the next request travels on another one
        kept = []
        with pytest.raises(BusyError, match="quota of resources"):
            while len(kept) < 9:
                kept.append(device.open_file(tmp_path / "in"))
        assert str(tmp_path / "in") in open_in(pid)
        for file in kept:
            file.close()
        device.allocate(1).close()  # sends what was released before
        device.queue.wait_idle(LONG)
        wait_until(lambda: not [name for name in open_in(pid) if name.startswith(str(tmp_path))])
        assert len(open_in(pid)) <= len(before) + 2


# -- a connection that moves bytes and drops descriptors ------------------------------------------------------------------------


class Forward:
    """Forwards one unix socket to another, as `ssh -L` does."""

    def __init__(self, path, target):
        self._target = target
        self._sockets = []
        self._threads = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._start(self._accept)

    def _start(self, run, *args):
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._sockets += [client, server]
            self._start(self._move, client, server)
            self._start(self._move, server, client)

    def _move(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(LONG)
        for sock in (self._listener, *self._sockets):
            sock.close()


def test_h23_a_forwarded_socket_drops_descriptors_and_the_bytes_travel(tmp_path):
    data = os.urandom(MIB)
    (tmp_path / "in").write_bytes(data)
    with ServerProcess(bind=f"unix://{tmp_path}/s") as server:
        forward = Forward(f"{tmp_path}/f", f"{tmp_path}/s")
        try:
            with remora.open(f"remote-unix://{tmp_path}/f") as device, device.allocate(MIB) as buffer:
                with device.open_file(tmp_path / "in") as file, device.open_file(tmp_path / "out", "w") as out:
                    device.queue.read_file(file, 0, buffer)
                    device.queue.write_file(buffer, out).wait(LONG)
                wait_until(lambda: device.link_statistics().bytes_sent > MIB)
        finally:
            forward.close()
        assert server.uri
    assert (tmp_path / "out").read_bytes() == data


# -- what a client cannot make the server take ----------------------------------------------------------------------------------


@pytest.fixture
def pushy(tmp_path):
    with ServerProcess(bind=f"unix://{tmp_path}/s") as server, raw_client(server.uri) as client:
        yield client, server


def register(client, *fds, access=1, device=0, of=None):
    """Register the file `of` (a descriptor), with these descriptors going along."""
    found = os.fstat(fds[0] if of is None else of)
    resource = client.session.provisional(ResourceType.FILE)
    request = client.session.request(FileRegister(resource, device, access, found.st_dev, found.st_ino, "label"))
    frame = client.session.take(Lane.CONTROL)
    if fds:
        client.carriers[Lane.CONTROL].send_fds(frame, fds, LONG)
    else:
        client.carriers[Lane.CONTROL].send_all(frame, timeout=LONG)
    return client.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == request).body


def test_h23_h25_a_descriptor_is_checked(pushy, tmp_path):
    client, server = pushy
    (tmp_path / "file").write_bytes(b"12345")
    path = tmp_path / "file"
    ends = os.pipe()
    kinds = {
        "read": os.open(path, os.O_RDONLY),
        "write": os.open(path, os.O_WRONLY),
        "both": os.open(path, os.O_RDWR),
        "append": os.open(path, os.O_WRONLY | os.O_APPEND),
        "path": os.open(path, os.O_PATH),
        "folder": os.open(tmp_path, os.O_RDONLY),
        "device": os.open("/dev/null", os.O_RDWR),
        "pipe": ends[0],
        "end": ends[1],
    }
    try:
        (pid,) = server.session_pids()
        assert isinstance(register(client, kinds["pipe"]), UsageError)  # an answer: the session has all that it opens by itself
        before = open_in(pid)
        refused = [("read", 2), ("read", 3), ("write", 1), ("write", 3), ("append", 2), ("path", 1)]
        refused += [("folder", 1), ("device", 1), ("pipe", 1), ("end", 2)]
        for kind, access in refused:
            answer = register(client, kinds[kind], access=access)
            assert isinstance(answer, UsageError), (kind, access, answer)
            assert "label" in str(answer)
        assert isinstance(register(client, kinds["read"], device=9), UsageError)
        assert "another file" in str(register(client, kinds["folder"], of=kinds["read"]))
        assert isinstance(register(client, of=kinds["read"]), UnsupportedError)
        assert open_in(pid) == before
        for kind, access in (("read", 1), ("write", 2), ("both", 1), ("both", 2), ("both", 3)):
            answer = register(client, kinds[kind], access=access)
            assert isinstance(answer, Opened)
            assert answer.size == 5
        assert len(open_in(pid)) == len(before) + 5
    finally:
        for fd in kinds.values():
            os.close(fd)


@pytest.mark.parametrize("sent", [(17,), (1,) * 17])
def test_h25_descriptors_that_nobody_asked_for_end_the_session(pushy, sent):
    client, server = pushy
    (pid,) = server.session_pids()
    read_end, write_end = os.pipe()
    try:
        frame = bytes([16, 0, 0, 0, 0x10, 0, 0, 0]) + bytes([1]) * 8  # PING
        for count in sent:
            client.carriers[Lane.CONTROL].send_fds(frame, [write_end] * count, LONG)
        with pytest.raises(remora.BrokenError):
            raise client.failed()
        server.wait_for("session 1 ended")
    finally:
        os.close(write_end)
    with open(read_end, "rb") as left:  # noqa: PTH123 - a descriptor
        assert left.read() == b""
    assert pid not in server.session_pids()


def test_h23_a_descriptor_is_taken_by_the_request_that_it_came_with(pushy, tmp_path):
    """Also when many come at once, among other requests."""
    client, _ = pushy
    fds = []
    try:
        requests = {}
        for number in range(40):
            (tmp_path / str(number)).write_bytes(bytes(number))
            fd = os.open(tmp_path / str(number), os.O_RDONLY)
            fds.append(fd)
            found = os.fstat(fd)
            resource = client.session.provisional(ResourceType.FILE)
            request = client.session.request(FileRegister(resource, 0, 1, found.st_dev, found.st_ino, "x"))
            requests[request] = number
            client.carriers[Lane.CONTROL].send_fds(client.session.take(Lane.CONTROL), [fd], LONG)
        for request, number in requests.items():
            body = client.until(Lane.CONTROL, lambda event, r=request: isinstance(event, Responded) and event.id == r).body
            assert body.size == number
    finally:
        for fd in fds:
            os.close(fd)


def test_h23_many_threads_open_files_at_once(near, tmp_path):
    paths = [tmp_path / f"file {number}" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 100)
    with remora.open(near.uri) as device:
        failures = []

        def work(number):
            try:
                for _ in range(20):
                    with device.open_file(paths[number]) as file:
                        assert file.size == 100
            except BusyError as error:
                assert error.code is Status.RESOURCE_EXHAUSTED
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert failures == []
