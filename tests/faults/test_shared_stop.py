"""H06, H26: with all sessions in one process, a kernel that never ends holds up its own session and not the end of the server."""

import signal

import pytest

import remora
from remora import samples

SOON = 20.0


@pytest.mark.parametrize("signals", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_h06_a_shared_server_stops_although_a_kernel_does_not(serve, works, signals):
    server = serve("tcp", shared=True, flags=("--drain-timeout", "0.2"))
    with remora.open(server.uri) as device:
        spin = device.load(samples.load("faults"))["spin"]
        endless = device.queue.dispatch(spin, (1, 1, 1), [])
        with pytest.raises(remora.DeadlineError):
            endless.wait(0.05)
        works(server.uri)
        for number in range(signals):
            server.signal(signal.SIGTERM)
            server.wait_for("stopping: ", SOON) if not number else None
        with pytest.raises(remora.BrokenError, match="the server is stopping"):
            endless.wait(SOON)
    assert server.wait(SOON) == 0
    assert "session 1 was left behind after 2 s: a kernel of it does not end; it ends with this process" in server.log
