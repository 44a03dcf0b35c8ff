"""H05, H27: Ctrl-C. A wait that it ends can be made again; a step that it cuts short costs the session. Nothing is left."""

import os
import random
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.faults.interrupted import SIZE, WINDOW, Host, Interruptions, Work
from tests.faults.processes import wait_until

from remora.testing.interrupts import Interrupts

#: Files of the standard library whose steps matter: the others keep nothing.
LIBRARY = ("threading.py", "socket.py", "contextlib.py")


LONG = 60.0
#: The quick test interrupts at one place of so many, the slow one at each.
EVERY = 47
#: Between the call that makes a socket and the object that owns it only the destructor can close it, which it does with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def host(leaves_nothing):
    host = Host()
    yield host
    host.close()


@pytest.fixture
def trials(serve, host, few_objects, request):
    """Interruptions of a client of one server."""
    trials = Interruptions(serve(request.param, window=WINDOW, keepalive=0.3, deadline=5), host)
    with trials.watch_threads():
        yield trials


def interrupt_all(trials, every, first):
    """One interruption at each place of every so many."""
    interrupts = Interrupts()
    places = [place for place in interrupts.places(Work(trials.uri, trials.host)) if is_ours(place.name)]
    for place in places[first::every]:
        trials.attempt(f"{place.name} +{place.offset}", lambda work, place=place: interrupts.strike(place, work))
    story = "\n".join(trials.story)
    print(f"{len(places)} places, {trials.runs} interruptions, {trials.ended} of them ended the session")
    assert not trials.story, f"{len(trials.story)} of {trials.runs} interruptions went wrong:\n{story}"
    return places


def is_ours(name):
    return not name.startswith("/") or any(file in name for file in LIBRARY)


@pytest.mark.interpreted
@pytest.mark.parametrize("trials", ["tcp", pytest.param("unix", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.timeout(300)  # on a busy machine
def test_h05_ctrl_c_anywhere_leaves_the_client_whole_or_ended(trials):
    places = interrupt_all(trials, EVERY, 0)
    assert len(places) > 500
    assert trials.runs >= len(places) // EVERY
    assert trials.ended < trials.runs
    wanted = {"queue.py", "link.py", "pump.py", "endpoint.py", "semaphore.py", "host.py", "connect.py", "bulk.py"}
    assert wanted <= {place.name.split(":")[0].rpartition("/")[2] for place in places}


@pytest.mark.interpreted
@pytest.mark.slow
@pytest.mark.parametrize("trials", ["tcp", "unix"], indirect=True)
@pytest.mark.timeout(1800)
def test_h05_ctrl_c_at_every_place_leaves_the_client_whole_or_ended(trials):
    interrupt_all(trials, 1, 0)


#: Makes one of the waits below, is interrupted in it, says so, lets go of what was waited for, and makes the same wait again.
WAITER = """
import os, signal, sys, threading
import remora
from remora import samples

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started with SIGINT ignored
SOON = 90
uri, what = sys.argv[1:3]
SIZE, WINDOW = map(int, sys.argv[3:])
device = remora.open(uri) if what != "connect" else None
print("began", flush=True)

class Held:
    '''The first queue stands still on the server until `let_go`.'''
    def __init__(self):
        self.event = device.event()
        recording = device.command_buffer()
        recording.wait_event(self.event)
        self.buffer = device.upload(b"\\x5a" * SIZE)
        device.queue.execute(recording.seal())
        device.queues[1].barrier().wait(SOON)
        self.let_go = self.event.signal

def let_another_lead(point):
    '''From here on another thread reads the lane. Before the interruption: what waits here is no wait of ours.'''
    threading.Thread(target=lambda: point.wait(SOON), daemon=True).start()
    while not device.host.pump._lead.locked():
        threading.Event().wait(0.001)

def fill_the_window():
    while submitted[0] < 3 * WINDOW:
        device.queue.barrier()
        submitted[0] += 1
    device.queue.wait_idle(SOON)

def connect():
    global device
    device = remora.open(uri)

submitted = [0]
let_go = lambda: None
if what == "host":
    gate = device.semaphore()
    point = device.queue.barrier(wait=gate.at(1))
    wait, let_go = lambda: point.wait(SOON), lambda: gate.signal(1)
elif what == "load":
    wait = lambda: device.load(samples.load("vector"))
elif what == "connect":
    wait = connect
else:
    held = Held()
    point, let_go, buffer = device.queue.barrier(), held.let_go, held.buffer
    if what == "follow":
        let_another_lead(point)
    wait = {
        "lead": lambda: point.wait(SOON),
        "follow": lambda: point.wait(SOON),
        "idle": lambda: device.queue.wait_idle(SOON),
        "read": lambda: buffer.read(0, 64, timeout=SOON),
        "read much": lambda: buffer.read(timeout=SOON),
        "write": lambda: buffer.write(b"\\x5a" * SIZE, timeout=SOON),
        "map": lambda: buffer.map().close(),
        "window": fill_the_window,
    }[what]

sys.stdin.readline()
try:
    print("waiting", flush=True)
    wait()
    print("was not interrupted", flush=True)
except KeyboardInterrupt:
    cut = what == "window" and device.host.link.session.failure is not None
    print("cut short" if cut else "interrupted", flush=True)
sys.stdin.readline()
let_go()
wait()
with device.upload(b"\\x5a" * SIZE) as buffer:
    assert bytes(buffer.read(timeout=SOON)) == b"\\x5a" * SIZE
device.queue.wait_idle(SOON)
assert device.host.link.session.failure is None
device.close()
names = sorted(thread.name for thread in threading.enumerate())
assert not [name for name in names if "remora" in name], names
print("whole", flush=True)
"""


def sleeps(pid):
    """Whether the main thread of a process sleeps in the same call of the system for a moment."""
    place = Path(f"/proc/{pid}/task/{pid}/syscall")
    seen = [place.read_text() for _ in range(50)]
    return len(set(seen)) == 1 and seen[0] != "running\n"


FEW = ["lead", "host", "window"]
WAITS = ["lead", "follow", "idle", "host", "read", "read much", "write", "map", "window", "load", "connect"]


@pytest.mark.timeout(300)  # on a busy machine
@pytest.mark.parametrize(
    ("scheme", "what"),
    [
        *(("tcp", what) for what in WAITS),
        ("shm", "lead"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (*(("unix", what) for what in FEW), ("shm", "host"), ("shm", "window"))
        ),
    ],
)
def test_h05_a_wait_that_ctrl_c_ends_can_be_made_again(serve, client, scheme, what):
    server = serve(scheme, window=WINDOW)
    # Who waits for room in the window tries to submit again and again: a few of a thousand interruptions meet a try, a step.
    program = next(filter(None, (interrupted_in_its_wait(server, client, what) for _ in range(5))))
    program.write("again")
    program.lines.wait_for("whole", timeout=LONG)


def interrupted_in_its_wait(server, client, what):
    """The program, after it was interrupted in its wait; None when the interruption met a step."""
    program = client(WAITER, server.uri, what, SIZE, WINDOW)
    program.lines.wait_for("began", timeout=LONG)
    stopped = [server.pid] if what == "connect" else server.session_pids() if what == "load" else []
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    program.write("wait")
    program.lines.wait_for("waiting", timeout=LONG)
    wait_until(lambda: sleeps(program.pid), timeout=LONG)
    program.signal(signal.SIGINT)
    told = lambda: program.lines.found("interrupted") or program.lines.found("cut short")  # noqa: E731
    program.lines.wait(told, LONG)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    if program.lines.found("cut short"):
        program.close()
        return None
    program.lines.wait_for("interrupted", timeout=LONG)
    return program


#: Works until it is interrupted, and tells what came of it; again and again.
WORKER = """
import signal, sys
from tests.faults.interrupted import Host, Work, left_behind

signal.signal(signal.SIGINT, signal.default_int_handler)
host = Host()
for line in sys.stdin:
    work = Work(sys.argv[1], host)
    try:
        print("working", flush=True)
        while True:
            work()
    except KeyboardInterrupt:
        pass
    wrong = work.check()
    print("verdict", wrong or ("ended" if work.was_ended() else "works"), flush=True)
work = None
host.close()
print("left", left_behind(), flush=True)
"""


def is_told(program, number):
    return len(program.lines.found("verdict")) >= number


def interrupt_at_random(serve, client, scheme, rounds):
    """SIGINT at any moment of a program that works; what came of each."""
    server, dice, pause = serve(scheme, window=WINDOW), random.Random(os.getpid()), threading.Event()
    program = client(WORKER, server.uri)
    verdicts = []
    for number in range(1, rounds + 1):
        program.write("go")
        program.lines.wait_for("working", number, LONG)
        pause.wait(dice.random() * 0.05)
        told = partial(is_told, program, number)
        while not told():
            program.signal(signal.SIGINT)  # Python throws away one that comes in a destructor or a callback of its own
            program.lines.wait(told, 2)
        verdicts.append(program.lines.found("verdict")[number - 1].removeprefix("verdict "))
    program.end_input()
    left = program.lines.wait_for("left", timeout=LONG)
    print({verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}, left)
    assert set(verdicts) <= {"works", "ended"}
    assert left == "left []"
    server.wait_for_sessions(0)


@pytest.mark.timeout(300)  # on a busy machine
@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_h05_sigint_at_random_moments(serve, client, scheme):
    interrupt_at_random(serve, client, scheme, 15)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_h05_many_sigints_at_random_moments(serve, client, scheme):
    interrupt_at_random(serve, client, scheme, 500)
