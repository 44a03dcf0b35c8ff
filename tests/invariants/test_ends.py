"""Invariants 9, 18, 19 and 22 of a remote HAL: how a session begins, ends, and lets go."""

import os
import signal
import threading

import pytest
from tests.remote.processes import go_on, stop
from tests.remote.raw import raw_client
from tests.session.pair import Pair

import remora
from remora import samples
from remora.base.ids import ResourceType
from remora.base.uri import parse_uri
from remora.carriers import Capability, connect, listen
from remora.errors import BrokenError, ClosedError, DeviceLostError, PeerError, UnsupportedError
from remora.link.connect import connect_session
from remora.session.events import EventTold, Failed
from remora.session.state import Lane, State
from remora.testing.cts.hal_factory import LONG, background
from remora.wire import commands
from remora.wire.bootstrap import CAPABILITIES, CAPABILITY_BULK, CAPABILITY_RDMA, Hello, encode_bootstrap
from remora.wire.calls import METHODS
from remora.wire.queue import EVENT_CREATE, EVENT_SIGNAL, EVENT_WAIT

VECTOR = samples.load("vector")

# -- 9 ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
def test_invariant_09_the_first_cause_wins_and_every_call_ends_with_it(serve, monkeypatch):
    """H05: calls that are open, waits that sleep, and whatever is asked later: one cause, told once."""
    server = serve()
    with remora.open(f"{server.uri}?deadline=30") as device:
        host, told = device.host, []
        on_failed = host.on_failed
        monkeypatch.setattr(host, "on_failed", lambda error: (told.append(error), on_failed(error)))
        (pid,) = server.session_pids()
        stop(pid)
        try:
            asking = [background(lambda: device.load(VECTOR)) for _ in range(8)]
            while len(host.calls._open) < 8:
                threading.Event().wait(0.001)
            waiting = [background(lambda: device.semaphore().wait(1, LONG)), background(device.queue.barrier().wait)]
        finally:
            os.kill(pid, signal.SIGKILL)
        outcomes = [future.exception(LONG) for future in (*asking, *waiting)]
        for call in (lambda: device.load(VECTOR), device.queue.barrier, lambda: device.allocate(8), device.semaphore().query):
            with pytest.raises(DeviceLostError) as caught:
                call()
            outcomes.append(caught.value)
        host.link.fail(BrokenError("a later cause"))
        host.link.close("an end in good order, too late")
        with pytest.raises(DeviceLostError) as caught:
            device.queue.barrier()
        outcomes.append(caught.value)
    assert {type(outcome) for outcome in outcomes} == {DeviceLostError}
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert "SIGKILL" in str(outcomes[0])
    assert len(told) == 1


@pytest.mark.interpreted
def test_invariant_09_no_call_is_registered_after_the_end_has_woken_them_all(device, monkeypatch):
    """Calls register under the lock that the end takes. In the moment between the end and its news a call is refused, not lost."""
    host, link, between = device.host, device.host.link, []
    request, on_failed = link.session.request, host.on_failed

    def registering(body):
        between.append(("registered", link.lock.locked()))
        return request(body)

    def failing(error):
        future = background(lambda: device.load(VECTOR))
        between.append(("refused", str(future.exception(LONG))))
        on_failed(error)

    monkeypatch.setattr(link.session, "request", registering)
    device.load(VECTOR).close()
    assert between
    assert set(between) == {("registered", True)}
    between.clear()
    monkeypatch.setattr(host, "on_failed", failing)
    link.fail(BrokenError("pulled out"))
    assert between == [("registered", True), ("refused", str(link.session.failure))]
    assert not host.calls._open


@pytest.mark.parametrize("how", ["refused", "silent", "garbage"])
def test_invariant_09_connecting_ends_once_with_a_device_or_with_an_error(how):
    """There are no callbacks to exclude each other: `open` returns a device or raises, and then nothing is left of it."""
    before = set(threading.enumerate())
    with listen("tcp://127.0.0.1:0") as listener:
        answering = None
        if how == "garbage":

            def answer():
                with listener.accept(LONG) as carrier:
                    carrier.activate()
                    carrier.send_all(b"\xff" * 64, timeout=LONG)
                    with pytest.raises(BrokenError):
                        while lease := carrier.receive(LONG):
                            lease.release()

            answering = background(answer)
        if how == "refused":
            listener.close()
        with pytest.raises(remora.Error) as caught:
            remora.open(f"remote-{listener.address}?timeout=0.5")
        assert listener.address.removeprefix("tcp://") in str(caught.value)
        if answering is not None:
            answering.result(LONG)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("remora")]


# -- 18 -----------------------------------------------------------------------------------------------------------------------


def test_invariant_18_a_required_capability_that_is_missing_is_refused(server):
    """H03: the server says which, and no session begins; nothing falls back to what is there."""
    hello = Hello(capabilities=CAPABILITIES, required=CAPABILITY_BULK | CAPABILITY_RDMA, client="needs rdma")
    with pytest.raises(UnsupportedError, match=rf"requires the capabilities {CAPABILITY_RDMA:#x}, which this server does not have"):
        connect_session(parse_uri(server.uri).carrier, hello, LONG)
    server.wait_for_sessions(0)
    with remora.open(server.uri) as device:
        assert device.host.link.session.accepted.capabilities == CAPABILITY_BULK


@pytest.mark.parametrize("offered", [0, CAPABILITY_BULK])
def test_invariant_18_a_client_takes_no_less_than_it_requires(offered):
    """An ACCEPT without it ends the session on the client before any lane is joined."""
    pair = Pair()
    pair.client.greet(Hello(capabilities=CAPABILITIES, required=CAPABILITIES))
    pair.move(pair.client)
    accept = pair.accept.__class__(
        **{name: getattr(pair.accept, name) for name in pair.accept.__slots__} | {"capabilities": offered}
    )
    (failed,) = pair.client.receive(Lane.CONTROL, memoryview(encode_bootstrap(accept)))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, PeerError)
    assert "asked for 0x7" in str(failed.error)
    assert pair.client.state is not State.OPERATIONAL


def test_invariant_18_no_carrier_hands_out_a_key_to_its_memory(tmp_path):
    """A key may be published only once its window is bound. No carrier binds windows: none claims direct reads or writes."""
    for address in ("loopback://", "tcp://127.0.0.1:0", f"unix://{tmp_path}/key"):
        with listen(address) as listener, connect(listener.address) as client, listener.accept(LONG) as server:
            for end in (client, server):
                assert not end.capabilities & (Capability.DIRECT_READ | Capability.DIRECT_WRITE | Capability.REGISTERED_REGIONS)


# -- 19 -----------------------------------------------------------------------------------------------------------------------


def test_invariant_19_a_wait_on_the_server_holds_up_neither_lane(raw):
    """H21: a wait for an event is answered later; the signal behind it on the same lane, and calls on the other, go through."""
    event = raw.session.provisional(ResourceType.EVENT)
    raw.session.event(EVENT_CREATE, event, device=0)
    raw.session.event(EVENT_WAIT, event, number=1)
    raw.send()
    nonce = raw.session.ask()
    raw.send()
    while not raw.session.heartbeat.answered(nonce):
        with raw.carriers[Lane.CONTROL].receive(LONG) as lease:
            raw.session.receive(Lane.CONTROL, lease.view)
    epoch = raw.command(0, commands.BARRIER)
    raw.send()
    raw.advanced(0, epoch)
    assert not [each for each in raw.events if isinstance(each, EventTold)]
    raw.session.event(EVENT_SIGNAL, event)
    raw.send()
    told = raw.until(Lane.QUEUE, lambda each: isinstance(each, EventTold))
    assert (told.action, told.number, told.state) == (EVENT_WAIT, 1, True)


def test_invariant_19_waiting_threads_hold_up_no_call(device):
    """H11: waits for semaphores are this side's own; no call of the control lane waits for anything but its own work."""
    assert not [method.request.__name__ for method in METHODS.values() if "Wait" in method.request.__name__]
    event, semaphore, gate = device.event(), device.semaphore(), device.semaphore()
    device.queues[1].barrier(wait=gate.at(1), signal=semaphore.at(1))
    waiting = [background(lambda: event.wait(LONG)), background(lambda: semaphore.wait(1, LONG))]
    kernels = device.load(VECTOR)
    device.queue.dispatch(kernels["empty"], (1, 1, 1), []).wait(LONG)
    assert not any(future.done() for future in waiting)
    gate.signal(1)
    event.signal()
    for future in waiting:
        future.result(LONG)


# -- 22 -----------------------------------------------------------------------------------------------------------------------


def test_invariant_22_close_waits_for_the_callback_that_runs_and_lets_none_in_after(server):
    """Closing refuses what is new, then waits for the callback that the link's thread is in, then lets go."""
    device = remora.open(server.uri)
    entered, leave, ran = threading.Event(), threading.Event(), []

    def callback():
        entered.set()
        assert leave.wait(LONG)
        ran.append(threading.current_thread().name)

    device.queue.barrier().on_done(callback)
    assert entered.wait(LONG)
    held = device.queue.barrier(wait=device.semaphore().at(1))
    held.on_done(lambda: ran.append("after"))
    closing = background(device.close)
    with pytest.raises(ClosedError):
        while True:
            device.allocate(8)
    with pytest.raises(TimeoutError):
        closing.result(0.3)
    leave.set()
    closing.result(LONG)
    count = len(ran)
    assert [name for name in ran if name != "after"] == [name for name in ran if name.startswith("remora link")]
    assert ran.count("after") == 1
    assert len(ran) == count == 2
    assert not [carrier for carrier in device.host.link.carriers.values() if carrier.fileno() != -1]


def test_invariant_22_a_callback_may_close_what_it_runs_on(server):
    """The link is not freed under the callback's feet: its own thread is not joined by itself, and all is closed afterwards."""
    device = remora.open(server.uri)
    link, closed = device.host.link, threading.Event()

    def callback():
        device.close()
        device.close()
        closed.set()

    device.queue.barrier().on_done(callback)
    assert closed.wait(LONG)
    link._runs_in.join(LONG)
    assert not link._runs_in.is_alive()
    assert {carrier.fileno() for carrier in link.carriers.values()} == {-1}
    with pytest.raises(ClosedError):
        device.queue.barrier()


def test_invariant_22_a_stopped_server_holds_no_close(serve):
    """Letting go needs no answer from the other side."""
    server = serve()
    device = remora.open(f"{server.uri}?deadline=30")
    (pid,) = server.session_pids()
    stop(pid)
    try:
        background(device.close).result(LONG)
    finally:
        go_on(pid)
    with raw_client(server.uri) as raw:
        epoch = raw.command(0, commands.BARRIER)
        raw.send()
        assert raw.advanced(0, epoch).failure is None
