"""`remora serve` (H06, H31, H40): ready when it says so, reachable as it says, and gone when told."""

import signal
import socket

import pytest

import remora
from remora.cli.serve import client_uri, trust


def test_h40_what_it_prints_can_be_used_at_once(serve):
    server = serve("--device", "cpu", "--device", "null")
    (address,) = server.facts("listening")
    assert address.startswith("tcp://127.0.0.1:")
    assert not address.endswith(":0")
    with remora.connect(server.uri) as host:
        assert [device.info.driver for device in host.devices] == ["cpu", "null"]
        for number, device in enumerate(host.devices):
            (line,) = server.facts(f"device {number}")
            assert device.name in line
            assert " ".join(map(str, device.targets)) in line


def test_h31_a_wildcard_address_names_this_machine_and_says_who_can_connect(serve):
    server = serve("--bind", "tcp://0.0.0.0:0")
    (address,) = server.facts("listening")
    port = address.rpartition(":")[2]
    assert address == f"tcp://0.0.0.0:{port}"
    assert server.facts("connect") == [f"remote-tcp://<server-host>:{port}  (this machine is called {socket.gethostname()})"]
    (told,) = server.facts("trust")
    assert "plaintext and unauthenticated" in told
    assert "anyone who can reach the port can run native code" in told


def test_several_addresses(serve, tmp_path):
    server = serve("--bind", "tcp://127.0.0.1:0", "--bind", f"unix://{tmp_path}/s")
    assert server.facts("connect")[1] == f"remote-unix://{tmp_path}/s"
    assert [told.split()[0] for told in server.facts("trust")] == ["tcp", "a"]
    for uri in server.facts("connect"):
        with remora.open(uri) as device:
            assert bytes(device.upload(b"abcd").read()) == b"abcd"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", [(), ("--shared",)])
def test_h40_a_signal_ends_it_with_0_and_tells_the_clients(serve, number, mode):
    server = serve(*mode)
    device = remora.open(server.uri)
    code, stderr = server.end(number)
    assert code == 0
    assert f"Received {number.name}, shutting down..." in stderr
    with pytest.raises(remora.BrokenError):
        device.upload(b"x")
    device.close()


def test_one_line_for_each_beginning_and_end_of_a_session(serve):
    server = serve()
    for _ in range(2):
        remora.open(server.uri).close()
    _, stderr = server.end(signal.SIGTERM)
    lines = [line.split(maxsplit=1)[1] for line in stderr.splitlines() if "session" in line]
    for number in (1, 2):
        assert sum(line.startswith(f"session {number} began") for line in lines) == 1
        assert sum(line.startswith(f"session {number} ended") for line in lines) == 1


def test_h06_options_reach_the_server(serve):
    server = serve("--max-sessions", "1", "--keepalive", "1", "--deadline", "4", "--window", "8")
    with remora.open(server.uri) as device, pytest.raises(remora.BusyError, match="--max-sessions"):
        assert device.host.link.session.accepted.command_window == 8
        remora.open(server.uri)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "gpu"), "no driver for 'gpu'"),
        (("--device", "cpu://?threads=none"), "threads is a number"),
        (("--bind", "http://x"), "no carrier for 'http'"),
        (("--bind", "loopback://x"), "loopback:// connects parts of one process"),
        (("--bind", "tcp://127.0.0.1:99999"), "is no port"),
        (("--max-sessions", "0"), "--max-sessions 0: give a number from 1"),
        (("--window", "-1"), "--window -1: give a number from 1"),
        (("--keepalive", "9", "--deadline", "3"), "the deadline must be the longer one"),
        (("--session-memory", "2GB"), "--session-memory: '2GB' is no size: give bytes, or a number with KiB, MiB, GiB or TiB"),
    ],
)
def test_wrong_arguments_end_with_2_and_say_what_is_right(remora_command, arguments, message):
    done = remora_command("serve", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_in_use_is_an_error_and_not_readiness(remora_command, serve):
    (address,) = serve().facts("listening")
    done = remora_command("serve", "--bind", address)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: cannot listen on {address}" in done.stderr


@pytest.mark.parametrize(
    ("address", "uri"),
    [
        ("tcp://0.0.0.0:5000", "remote-tcp://<server-host>:5000"),
        ("tcp://[::]:77", "remote-tcp://<server-host>:77"),
        ("tcp://[::1]:77", "remote-tcp://[::1]:77"),
        ("unix:///run/s", "remote-unix:///run/s"),
    ],
)
def test_client_uris(address, uri):
    assert client_uri(address) == uri


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://127.8.0.1:1", "tcp://[::1]:1"])
def test_loopback_addresses_are_trusted_more_than_others(address):
    assert trust(address) != trust("tcp://10.0.0.1:1") == trust("tcp://[::]:1") == trust("tcp://[fe80::1]:1")
