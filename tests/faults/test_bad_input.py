"""H05, H06, H25: strangers, broken clients and wrong arguments get a specific error, and the server serves the next client."""

import socket
import struct
import threading
from time import monotonic

import pytest

import remora
from remora import samples
from remora.base.uri import parse_uri, split_host_port
from remora.link.connect import connect_session
from remora.session.state import Lane
from remora.testing.server import ServerProcess
from remora.wire.bootstrap import Hello, encode_bootstrap
from remora.wire.layout import VERSION

SOON = 20.0


@pytest.fixture(scope="module")
def shared_server():
    """One server for the whole file: that it serves on after each test is what they show."""
    with ServerProcess(max_sessions=2) as server:
        yield server


@pytest.fixture
def server(shared_server, leaves_nothing, works):
    yield shared_server
    shared_server.wait_for_sessions(0)
    works(shared_server.uri)


@pytest.fixture
def device(server):
    with remora.open(server.uri) as device:
        yield device


@pytest.fixture
def endpoint():
    """endpoint(answer) -> URI of a listener that calls answer(socket) for each connection."""
    threads, listeners, connections = [], [], []

    def run(answer):
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        threads.append(thread)
        listeners.append(listener)
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    yield run
    for sock in (*listeners, *connections):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
        finally:
            sock.close()
    for thread in threads:
        thread.join(SOON)


def raw(server):
    """A plain connection to the server."""
    host, port = split_host_port(server.addresses[0].removeprefix("tcp://"))
    return socket.create_connection((host, port), SOON)


def read_all(sock):
    """Everything until the server ends the connection."""
    data = b""
    try:
        while block := sock.recv(65536):
            data += block
    except ConnectionResetError:
        return data
    return data


# -- what a client meets ----------------------------------------------------------------------------------------------------------


def test_h05_a_port_where_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(remora.BrokenError, match="connection refused: is the server running") as caught:
        remora.open(f"remote-tcp://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_h05_a_socket_file_that_is_not_there(tmp_path):
    with pytest.raises(remora.BrokenError, match="is the server running") as caught:
        remora.open(f"remote-unix://{tmp_path}/none")
    assert str(tmp_path) in str(caught.value)


def test_h05_a_server_of_something_else(endpoint):
    uri = endpoint(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nWhat?"))
    with pytest.raises(remora.PeerError, match=r"begins with b'HTTP/1.1 400 Bad'. Is the other side remora\?") as caught:
        remora.open(f"remote-{uri}")
    assert uri.removeprefix("tcp://") in str(caught.value)


def test_h04_an_endpoint_that_takes_the_connection_and_says_nothing(endpoint):
    uri = endpoint(lambda sock: None)
    begin = monotonic()
    with pytest.raises(remora.DeadlineError, match=r"did not answer as a remora server within 0\.3 s") as caught:
        remora.open(f"remote-{uri}?timeout=0.3")
    assert monotonic() - begin < 5
    assert uri in str(caught.value)


def test_h05_an_endpoint_that_closes(endpoint):
    uri = endpoint(lambda sock: sock.close())
    with pytest.raises(remora.BrokenError, match="ended the connection before it accepted a session") as caught:
        remora.open(f"remote-{uri}")
    assert uri in str(caught.value)


def test_h03_a_server_of_another_version(endpoint):
    def answer(sock):
        frame = bytearray(encode_bootstrap(Hello()))
        struct.pack_into("<H", frame, 6, VERSION + 1)
        sock.sendall(frame)

    uri = endpoint(answer)
    with pytest.raises(
        remora.PeerError, match=f"version {VERSION + 1}, this side version {VERSION}: install the same remora"
    ) as caught:
        remora.open(f"remote-{uri}")
    assert uri in str(caught.value)


def test_h25_a_truncated_answer(endpoint):
    def answer(sock):
        sock.sendall(encode_bootstrap(Hello())[:20])
        sock.close()

    with pytest.raises(remora.BrokenError, match="ended the connection before it accepted a session"):
        remora.open(f"remote-{endpoint(answer)}")


# -- what a server meets ----------------------------------------------------------------------------------------------------------


def test_h03_a_client_of_another_version_is_told(server):
    frame = bytearray(encode_bootstrap(Hello()))
    struct.pack_into("<H", frame, 6, VERSION + 1)
    with raw(server) as sock:
        sock.sendall(frame)
        answer = read_all(sock)
    assert f"version {VERSION + 1}".encode() in answer
    assert b"install the same remora" in answer


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 64,
        b"\xff" * 4096,
        bytes(range(256)) * 1024,
        b"\x08\0\0\0\0\0\0\0",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["http", "zeros", "ones", "256 KiB", "empty frame", "ssh"],
)
def test_h25_garbage_costs_its_own_connection_only(server, garbage):
    with raw(server) as sock:
        try:
            sock.sendall(garbage)
        except OSError:
            return
        answer = read_all(sock)
    assert b"remora" in answer or not answer


@pytest.mark.parametrize("size", [0, 1, 7, 8, 20, len(encode_bootstrap(Hello())) - 1])
def test_h06_a_truncated_hello(server, size):
    with raw(server) as sock:
        sock.sendall(encode_bootstrap(Hello())[:size])
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    assert not answer
    assert server.session_pids() == ()


@pytest.mark.parametrize("more", [b"", b"\xff" * 100, b"\x10\0\0\0\x20\0\0\0"], ids=["nothing", "garbage", "half a frame"])
def test_h06_a_client_that_leaves_after_hello(server, more):
    """Its session began; it ends at once, not after the time that joining may take."""
    with raw(server) as sock:
        sock.sendall(encode_bootstrap(Hello(client="vanishing")))
        assert sock.recv(4096)
        if more:
            sock.sendall(more)
    server.wait_for_sessions(0, 5)


def test_h06_truncated_frames_in_a_live_session(server):
    """A peer that sends half a COMMAND and leaves."""
    session, carriers = connect_session(parse_uri(server.addresses[0]), Hello())
    carriers[Lane.QUEUE].send_all(struct.pack("<IBBH", 4096, 0x20, 0, 0) + b"half")
    for carrier in carriers.values():
        carrier.close()
    server.wait_for_sessions(0, 5)
    assert session.failure is None


@pytest.mark.parametrize("shared", [False, True], ids=["process", "thread"])
def test_h06_a_slot_is_free_when_its_client_leaves_before_the_lanes_are_joined(serve, works, until, shared):
    server = serve(max_sessions=1, shared=shared)
    with raw(server) as sock:
        sock.sendall(encode_bootstrap(Hello(client="vanishing")))
        assert sock.recv(4096)
        with pytest.raises(remora.BusyError, match="sessions"):
            remora.open(server.uri)
    server.wait_for("session 1 ended")
    works(server.uri)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["process", "thread"])
def test_h06_a_client_that_never_joins_its_lanes_is_told_and_loses_its_slot(serve, works, shared):
    server = serve(max_sessions=1, shared=shared)
    with raw(server) as sock:
        sock.sendall(encode_bootstrap(Hello(client="silent")))
        assert b"did not join its lanes within 10 s" in read_all(sock)
    server.wait_for("session 1 ended: the client did not join")
    works(server.uri)


@pytest.mark.slow
def test_h06_a_connection_that_never_greets_is_refused(serve, works):
    server = serve(max_sessions=1)
    with raw(server) as sock:
        works(server.uri)
        assert b"no HELLO within 10 s" in read_all(sock)


# -- what a program gets wrong ----------------------------------------------------------------------------------------------------


def test_h19_a_bundle_for_other_targets(device):
    bundle = samples.load("vector")
    kernels = bundle.kernels
    other = remora.Target("cpu", "sparc64-linux")
    with pytest.raises(remora.UsageError, match=r"does not take cpu.*sparc64.*it takes") as caught:
        device.load_artifact(other, b"\x7fELF" + bytes(60), kernels)
    assert device.targets[0].key in str(caught.value)


def test_h19_an_artifact_that_is_garbage(device):
    with pytest.raises(remora.Error, match=r"ELF|artifact|library"):
        device.load_artifact(device.targets[0], b"not machine code" * 100, samples.load("vector").kernels)
    assert bytes(device.upload(b"goes on").read(timeout=SOON)) == b"goes on"


def test_h19_an_artifact_of_another_machine(device):
    """A real artifact of the wrong architecture under the right name: the server looks, and does not run it."""
    bundle = samples.load("vector")
    own, _ = bundle.select(device.targets)
    foreign = bundle.artifact(next(target for target in bundle.targets if target != own))
    with pytest.raises(remora.Error, match=r"ELF|machine|architecture|x86|aarch64"):
        device.load_artifact(own, foreign, bundle.kernels)


def test_h05_a_kernel_name_that_is_not_there(device):
    vector = device.load(samples.load("vector"))
    with pytest.raises(remora.NotFoundError, match=r"there is no kernel 'add_i33'; this executable has: .*add_i32"):
        vector["add_i33"]
    vector.close()


def test_h05_a_wrong_number_of_bindings(device):
    add = device.load(samples.load("vector"))["add_i32"]
    with device.allocate(64) as buffer, pytest.raises(remora.UsageError, match=r"add_i32 takes \d bindings \(.+\), got 1"):
        device.queue.dispatch(add, add.grid_for(16), [buffer], (16,))


def test_h05_too_small_a_buffer(device):
    add = device.load(samples.load("vector"))["add_i32"]
    with device.allocate(60) as small, pytest.raises(remora.UsageError, match=r"binding 0 \(.+\) needs 64 bytes, got 60"):
        device.queue.dispatch(add, add.grid_for(16), [small] * len(add.info.bindings), (16,))


def test_h05_a_wait_past_its_deadline(device):
    gate = device.semaphore()
    held = device.queue.barrier(wait=gate.at(1))
    begin = monotonic()
    with pytest.raises(remora.DeadlineError, match="did not reach 1 within 100 ms"):
        held.wait(0.1)
    assert 0.09 < monotonic() - begin < 5
    gate.signal(1)
    held.wait(SOON)


def test_h05_the_server_checks_for_itself_what_the_client_checks(server):
    """A client without checks (the contract travels, and is not trusted): a command fails, nothing crashes."""
    with remora.open(server.uri) as device:
        add = device.load(samples.load("vector"))["add_i32"]
        with device.allocate(60) as small:
            point = device.queue._dispatch(add, add.grid_for(16), [small] * len(add.info.bindings), add.pack((16,)), (), ())
            with pytest.raises(remora.UsageError, match="needs 64 bytes, got 60"):
                point.wait(SOON)
