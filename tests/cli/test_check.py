"""`remora check` and `remora devices` (H40): exit codes, exact results, and what is said when something is wrong."""

import contextlib
import signal
import socket
import threading

import pytest

from remora.cli import check


def test_h40_check_passes_on_a_server(remora_command, serve):
    server = serve()
    done = remora_command("check", server.uri)
    assert (done.returncode, done.stderr) == (0, "")
    labels = [line.split()[0] for line in done.stdout.splitlines()]
    assert labels == [
        *(
            "connect",
            "device",
            "targets",
            "pick",
            "upload",
            "dispatch",
            "download",
            "verify",
            "dispatch",
            "download",
            "verify",
            "PASS",
        )
    ]
    assert server.end(signal.SIGTERM)[0] == 0


def test_check_takes_a_local_device(remora_command):
    done = remora_command("check", "cpu://?threads=1")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("PASS")


def test_check_goes_through_every_device_or_the_one_that_is_named(remora_command, serve):
    server = serve("--device", "cpu", "--device", "null")
    every = remora_command("check", server.uri)
    assert every.returncode == 1  # the null device runs no kernels
    assert "device 1" in every.stdout
    assert "no artifact fits the device: it takes null:any" in every.stderr
    assert remora_command("check", f"{server.uri}?device=0").returncode == 0


def test_h40_a_wrong_result_fails(monkeypatch, capsys):
    monkeypatch.setattr(check, "mixed", lambda value: value)
    from remora.cli.main import main

    assert main(["check", "cpu"]) == 1
    shown = capsys.readouterr()
    assert "FAIL" in shown.out
    assert "mix_u32 computed" in shown.err


def refused():
    """An address where nobody listens: the port of a socket that is bound and does not listen."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock, f"remote-tcp://127.0.0.1:{sock.getsockname()[1]}"


def test_an_unreachable_server(remora_command):
    sock, uri = refused()
    with sock:
        done = remora_command("check", uri)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL")
    error, *_, hint = done.stderr.splitlines()
    assert error.startswith("error: connection refused")
    assert uri.removeprefix("remote-") in error
    assert hint.startswith("hint: ")
    assert "Traceback" not in done.stderr


@contextlib.contextmanager
def web_server():
    """Something that listens and is no remora server: it answers as a web server does to nonsense."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    peer = listener.accept()[0]
                    with peer:
                        peer.recv(4096)
                        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"remote-tcp://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def test_something_that_is_no_remora_server(remora_command):
    with web_server() as uri:
        done = remora_command("check", uri)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert uri.removeprefix("remote-") in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["check", "devices"])
@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("tcp://127.0.0.1:5000", "hint: a device behind a server has a remote- URI"),
        ("abacus", "no driver for 'abacus'; known: cpu"),
        ("", "is no device URI; examples: cpu"),
    ],
)
def test_a_uri_that_is_none_is_wrong_usage(remora_command, command, uri, message):
    done = remora_command(command, uri)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_h06_a_full_server_says_so(remora_command, serve):
    import remora

    server = serve("--max-sessions", "1")
    with remora.open(server.uri):
        done = remora_command("check", server.uri)
    assert done.returncode == 1
    assert "--max-sessions" in done.stderr


def test_verbose_shows_where_an_error_arose(remora_command):
    sock, uri = refused()
    with sock:
        done = remora_command("check", uri, "--verbose")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "hint: " in done.stderr


def test_devices_lists_local_and_remote_devices(remora_command, serve):
    local = remora_command("devices")
    assert local.returncode == 0
    heading, row = local.stdout.splitlines()
    assert heading.split() == ["#", "device", "driver", "targets", "memory", "queues"]
    assert " cpu " in row
    assert "GB" in row
    remote = remora_command("devices", serve("--device", "cpu", "--device", "null").uri)
    assert remote.returncode == 0
    assert remote.stdout.splitlines()[1].split() == row.split()
    assert remote.stdout.splitlines()[2].split()[:4] == ["1", "null", "null", "null:any"]
