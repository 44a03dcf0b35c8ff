"""H08, H40: two machines, as two network namespaces, and a cable that is pulled."""

from time import monotonic

import pytest
from tests.faults.processes import CLIENT

pytestmark = pytest.mark.netns

DEADLINE = 1.0
#: What a busy machine may add to the deadline.
SLACK = 2.0
QUERY = f"?keepalive=0.2&deadline={DEADLINE:g}"


def test_h40_check_passes_over_a_network(cable):
    with cable.serve() as server:
        code, output = cable.remora("check", server.uri)
        assert code == 0, output
        assert "PASS" in output


def test_h40_check_says_what_is_wrong_when_the_network_is_cut(cable):
    with cable.serve() as server:
        cable.pull("drop")
        code, output = cable.remora("check", f"{server.uri}?timeout=1")
        assert code == 1
        assert "10.77.0.1" in output
        assert "Traceback" not in output


@pytest.mark.parametrize("how", ["link", *(pytest.param(how, marks=pytest.mark.slow) for how in ("cable", "drop"))])
@pytest.mark.parametrize("doing", ["idle", "wait", "compute", "upload", "download"])
def test_h08_a_pulled_cable_is_noticed_within_the_deadline_on_both_sides(cable, how, doing):
    with cable.serve(max_sessions=1, keepalive=0.2, deadline=DEADLINE) as server:
        client = cable.client(CLIENT, server.uri + QUERY, doing)
        try:
            client.lines.wait_for("ready")
            cable.pull(how)
            begin = monotonic()
            ended = client.lines.wait_for("ended BrokenError")
            server.wait_for("session 1 ended")
            assert monotonic() - begin < DEADLINE + SLACK
            assert "10.77.0.1" in ended
            assert "no sign of life" in ended or "network" in ended or "route" in ended
            server.wait_for_sessions(0)
        finally:
            client.close()
        cable.mend(how)
        code, output = cable.remora("check", server.uri)
        assert code == 0, output


def test_h08_a_cable_that_is_back_in_time_loses_nothing(cable):
    """A short cut is TCP's to mend: the transfer goes on."""
    with cable.serve(max_sessions=1, keepalive=1, deadline=15) as server:
        client = cable.client(TRANSFER, f"{server.uri}?keepalive=1&deadline=15")
        try:
            client.lines.wait_for("ready")
            cable.pull("drop")
            client.lines.wait_for("stands still")
            cable.mend("drop")
            client.lines.wait_for("whole")
            assert "session 1 ended" not in server.log
        finally:
            client.close()


#: Uploads until the bytes stop moving, then until they are all there, and looks at them.
TRANSFER = """
import sys, threading
import remora

pause = threading.Event()
device = remora.open(sys.argv[1])
data = bytes(range(256)) * (1 << 18)
buffer = device.allocate(len(data))
print("ready", flush=True)
still = 0
while still < 5:
    point = device.queue.update(buffer, data)
    try:
        point.wait(0.1)
        still = 0
    except remora.DeadlineError:
        before = device.link_statistics().bytes_sent
        pause.wait(0.2)
        still = still + 1 if device.link_statistics().bytes_sent == before else 0
        if still:
            break
print("stands still", flush=True)
point.wait(40)
assert bytes(buffer.read(timeout=40)) == data
print("whole", flush=True)
"""
