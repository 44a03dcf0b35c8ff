"""H19, H26: a session that dies while it uploads an executable leaves no half of it behind."""

import os
import signal
from pathlib import Path

import pytest
from tests.faults.processes import SOON

import remora
from remora import samples

SIZE = 256 << 20
CODE = """
import sys, threading
import remora
from remora import samples

device = remora.open(sys.argv[1])
vector = samples.load("vector")
target, artifact = vector.select(device.targets)
data = bytearray(int(sys.argv[2]))
data[: len(artifact)] = artifact

def watch():
    while device.link_statistics().bytes_sent < 4 << 20:
        threading.Event().wait(0.001)
    print("sending", flush=True)

threading.Thread(target=watch, daemon=True).start()
try:
    device.load_artifact(target, data, vector.kernels)
    print("loaded", flush=True)
except remora.Error as error:
    print("ended", type(error).__name__, error, flush=True)
"""


def content_files(pid):
    return [link for fd in Path(f"/proc/{pid}/fd").iterdir() if "remora-content" in (link := str(fd.readlink()))]


@pytest.mark.parametrize("victim", ["session", "client"])
def test_h19_an_upload_that_is_cut_short_is_not_kept(serve, client, works, until, victim):
    server = serve()
    before = len(os.listdir(f"/proc/{server.pid}/fd"))
    program = client(CODE, server.uri, SIZE)
    program.lines.wait_for("sending")
    if victim == "session":
        os.kill(server.session_of(1), signal.SIGKILL)
        assert "SIGKILL" in program.lines.wait_for("ended")
    else:
        program.kill()
    server.wait_for_sessions(0)
    until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) == before, lambda: os.listdir(f"/proc/{server.pid}/fd"))
    assert content_files(server.pid) == []
    works(server.uri)


def test_h19_the_cache_outlives_the_session_that_filled_it(serve, until):
    server = serve()
    vector = samples.load("vector")
    first = remora.open(server.uri)
    target, artifact = vector.select(first.targets)
    artifact += bytes(1 << 20)
    first.load_artifact(target, artifact, vector.kernels)
    os.kill(server.session_of(1), signal.SIGKILL)
    server.wait_for_sessions(0)
    first.close()
    assert len(content_files(server.pid)) == 1
    with remora.open(server.uri) as second:
        kernels = second.load_artifact(target, artifact, vector.kernels)
        assert second.link_statistics().bytes_sent < 1 << 19
        second.queue.dispatch(kernels["empty"], (1, 1, 1), []).wait(SOON)
