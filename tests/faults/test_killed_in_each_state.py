"""H05, H06, H26: kill -9 of either side in each state of a session: the survivor ends soon, with a cause, and nothing is left."""

import os
import signal
from time import monotonic

import pytest
from tests.faults.deadly import SCRIPT
from tests.faults.job import job
from tests.faults.processes import SOON, Service

import remora

#: Seconds within which a survivor knows: a dead process is noticed by its kernel, not by a heartbeat.
KNOWN = 5.0
#: Bytes of the job's buffers: several chunks.
SIZE = 8 << 20
LONGER = ("--drain-timeout", "50")

#: State of the session -> the call at which the server dies, which one of its calls, and which process that is.
SERVER_DIES = {
    "idle, the connection is accepted": ("remora.server.serve:Greeting", 1, "parent"),
    "greeting, HELLO has come": ("remora.server.serve:Server._greet", 1, "parent"),
    "greeting, the device is opened": ("remora.server.process:open_all", 1, "session"),
    "accepted, ACCEPT is sent": ("remora.server.process:_take_lanes", 1, "session"),
    "joining, the queue lane has come": ("remora.server.slot:ProcessSlot.give_lane", 1, "parent"),
    "joining, the bulk lane has come": ("remora.server.slot:ProcessSlot.give_lane", 2, "parent"),
    "joining, the queue lane is handed over": ("remora.server.process:take_over", 1, "session"),
    "joining, the bulk lane is handed over": ("remora.server.process:take_over", 2, "session"),
    "joining, before JOINED": ("remora.server.process:confirm_lanes", 1, "session"),
    "operational, idle": ("remora.link.link:Link.run", 1, "session"),
    "operational, the first command": ("remora.server.dispatch:Dispatcher.command", 1, "session"),
    "operational, commands in flight": ("remora.server.dispatch:Dispatcher.command", 4, "session"),
    "operational, an upload in flight": ("remora.link.bulk:BulkLane._on_data", 2, "session"),
    "operational, a download in flight": ("remora.link.outgoing:SendSchedule._cut", 3, "session"),
    "operational, an answer is due": ("remora.server.dispatch:Dispatcher.report", 2, "session"),
}

#: State of the session -> the call at which the client dies, and which one of its calls.
CLIENT_DIES = {
    "idle, connected": ("remora.session.session:Session.greet", 1),
    "greeting, HELLO is sent": ("remora.session.session:Session.receive", 1),
    "accepted": ("remora.session.session:Session.join_message", 1),
    "joining, the queue lane has joined": ("remora.session.session:Session.join_message", 2),
    "joining, both lanes have joined": ("remora.link.connect:_await_joined", 1),
    "joining, the queue lane is confirmed": ("remora.link.connect:_await_joined", 2),
    "operational, idle": ("remora.hal.device:Device.load", 1),
    "operational, commands in flight": ("remora.link.pump:QueuePump.lead", 1),
    "operational, an upload in flight": ("remora.link.outgoing:SendSchedule._cut", 3),
    "operational, a download in flight": ("remora.link.bulk:BulkLane._on_data", 2),
    "closing, before GOAWAY": ("remora.link.link:Link._say_goodbye", 1),
    "closing, GOAWAY is sent": ("remora.link.link:Link.join", 1),
}


#: The states in which bytes are on their way, though both sides are on one machine.
MOVING = ("operational, an upload in flight", "operational, a download in flight")


#: Calls of these modules are C where they are compiled, and cannot be replaced by a deadly one.
COMPILED = ("remora.link.link:", "remora.link.pump:", "remora.server.dispatch:", "remora.session.session:")


def states(dies):
    """The states of a table, as parameters."""
    return [
        pytest.param(state, marks=[pytest.mark.interpreted] if call[0].startswith(COMPILED) else []) for state, call in dies.items()
    ]


def moving(uri, state):
    return f"{uri}?shared=0" if state in MOVING else uri


class DeadlyService(Service):
    """A server that dies at a call; see deadly.py."""

    def __init__(self, fuse, target, nth, **options):
        super().__init__(**options)
        self._command[1:3] = [SCRIPT, str(fuse), target, str(nth), "server"]


@pytest.fixture(params=["tcp", pytest.param("unix", marks=pytest.mark.slow)])
def scheme(request):
    return request.param


@pytest.fixture
def fuse(tmp_path):
    path = tmp_path / "fuse"
    path.touch()
    return path


@pytest.fixture
def dying(tmp_path, scheme, fuse, leaves_nothing):
    """dying(target, nth) -> a running DeadlyService, closed at the end."""
    services = []

    def run(target, nth, **options):
        bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/s"
        services.append(DeadlyService(fuse, target, nth, bind=bind, **options).start())
        return services[-1]

    yield run
    for service in services:
        service.close()


def held(pid):
    """(descriptors, threads) of a process."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def check_unchanged(server, before, until, works):
    """The server has nothing of the session any more, and serves the next client."""
    until(lambda: not server.session_pids() and held(server.pid) == before, lambda: f"held {before}, now {held(server.pid)}")
    works(server.uri)


@pytest.mark.parametrize("state", states(SERVER_DIES))
def test_h05_the_server_dies_and_the_client_knows_why(dying, fuse, until, works, state):
    target, nth, process = SERVER_DIES[state]
    server = dying(target, nth)
    before = held(server.pid)
    begin = monotonic()
    with pytest.raises(remora.Error) as caught:
        job(moving(server.uri, state), SIZE)
    assert not fuse.exists(), "the state was never reached"
    assert monotonic() - begin < KNOWN
    assert isinstance(caught.value, remora.BrokenError | remora.DeviceLostError), repr(caught.value)
    assert server.address in str(caught.value)
    if process == "parent":
        assert server.wait(SOON) == -signal.SIGKILL
        until(lambda: not server.session_pids())
    else:
        server.wait_for("session 1 died of SIGKILL", SOON)
        check_unchanged(server, before, until, works)


def test_h05_the_server_dies_after_goodbye_and_the_client_does_not_mind(dying, fuse, until, works):
    server = dying("remora.server.process:_say_why", 1)
    before = held(server.pid)
    job(server.uri)
    server.wait_for("session 1 died of SIGKILL", SOON)
    assert not fuse.exists()
    check_unchanged(server, before, until, works)


def test_h05_the_session_dies_while_it_drains(dying, fuse):
    server = dying("remora.server.ending:Drain.look", 1, flags=LONGER)
    with remora.open(server.uri) as device:
        held_back = device.queue.barrier(wait=device.semaphore().at(1))
        device.queues[1].barrier().wait(SOON)
        begin = monotonic()
        server.signal(signal.SIGTERM)
        with pytest.raises((remora.BrokenError, remora.DeviceLostError)):
            held_back.wait(SOON)
        assert monotonic() - begin < KNOWN
    assert not fuse.exists()
    assert server.wait(SOON) == 0


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["processes", "shared"])
@pytest.mark.parametrize("state", states(CLIENT_DIES))
def test_h05_the_client_dies_and_the_server_lets_go(serve, client, scheme, fuse, until, works, state, shared):
    server = serve(scheme, shared=shared)
    works(server.uri)
    server.wait_for("session 1 ended", SOON)
    until(lambda: not server.session_pids() and held(server.pid)[1] == 1)
    before = held(server.pid)
    program = client_at(client, fuse, CLIENT_DIES[state], moving(server.uri, state))
    assert program.process.wait(SOON) == -signal.SIGKILL, program.lines.seen
    begin = monotonic()
    if "session 2 began" in server.log:
        server.wait_for("session 2 ended", SOON)
    check_unchanged(server, before, until, works)
    assert monotonic() - begin < KNOWN
    assert not fuse.exists()


@pytest.mark.parametrize("shared", [False, True], ids=["processes", "shared"])
def test_h06_the_client_dies_while_its_session_drains(serve, client, scheme, fuse, shared):
    """The server does not wait for the end of the time that it gives."""
    server = serve(scheme, shared=shared, flags=LONGER)
    program = client(WAITS, server.uri)
    program.lines.wait_for("ready")
    server.signal(signal.SIGTERM)
    server.wait_for("stopping: ", SOON)
    program.kill()
    begin = monotonic()
    assert server.wait(SOON) == 0
    assert monotonic() - begin < KNOWN


def client_at(client, fuse, place, uri):
    target, nth = place
    return client(RUN, SCRIPT, fuse, target, nth, "client", uri, SIZE)


#: Runs a script as its own program would be run.
RUN = """
import runpy, sys
del sys.argv[0]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""

#: Has work on the server that its event ends, which never comes.
WAITS = """
import sys
import remora

with remora.open(sys.argv[1]) as device:
    event = device.event()
    with device.command_buffer() as recording:
        recording.wait_event(event)
        point = device.queue.execute(recording.seal())
        device.queues[1].barrier().wait(20)
        print("ready", flush=True)
        point.wait(60)
"""
