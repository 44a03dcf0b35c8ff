"""G12: the same graph on a local and a remote device; a prepared graph is one round trip; slots are bound at submit."""

import pytest

from remora import samples
from remora.errors import UsageError
from remora.graph import HOST_VISIBLE, Runtime
from remora.testing.server import ServerProcess

SOON = 30.0
N = 4096


def words(*values):
    return b"".join(value.to_bytes(4, "little") for value in values)


@pytest.fixture(scope="module")
def uris(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sockets")
    with ServerProcess() as tcp, ServerProcess(bind=f"unix://{folder}/u") as unix, ServerProcess(bind=f"shm://{folder}/s") as shm:
        yield {"cpu": "cpu", "tcp": tcp.uri, "unix": unix.uri, "shm": shm.uri}


@pytest.fixture(params=["cpu", "tcp", "unix", "shm"])
def anywhere(request, uris):
    """A runtime over a local or remote device."""
    with Runtime(uris[request.param]) as made:
        yield made


@pytest.fixture
def far(uris):
    with Runtime(uris["tcp"]) as made:
        yield made


def chain(runtime, length, slot_size=0):
    """(graph, slot, result): `length` additions of a slot, or of a buffer of ones, to a buffer, and a download of the sum."""
    kernel = runtime.device().load(samples.load("vector"))["add_i32"]
    graph = runtime.graph()
    step = graph.slot(slot_size) if slot_size else runtime.allocate(4 * N)
    sums = [runtime.allocate(4 * N), runtime.allocate(4 * N)]
    if not slot_size:
        graph.fill(step, words(1))
    graph.fill(sums[0])
    for number in range(length):
        graph.kernel(kernel, [sums[number % 2], step, sums[(number + 1) % 2]], (N,))
    return graph, step, sums[length % 2]


def test_g12_the_same_graph_anywhere(anywhere):
    graph, _, total = chain(anywhere, 9)
    seen = HOST_VISIBLE, anywhere.allocate(4 * N, HOST_VISIBLE)
    graph.copy(total, seen[1])
    result = bytearray(4 * N)
    graph.download(total, result)
    replay = graph.prepare()
    for _ in range(3):
        replay.submit().wait(SOON)
        assert bytes(result) == words(*[9] * N)
        with seen[1].read(SOON) as guard:
            assert bytes(guard.view) == bytes(result)


@pytest.mark.interpreted
@pytest.mark.parametrize("length", [1, 10, 300])
def test_g12_a_prepared_graph_is_one_command_and_one_round_trip(far, length, monkeypatch):
    graph, _, _ = chain(far, length)
    replay = graph.prepare()
    replay.submit().wait(SOON)
    device = far.device()
    monkeypatch.setattr(device.host.pump, "poll", lambda: None)  # only who waits reads the lane, so that a wait is counted
    before = device.link_statistics()
    replay.submit().wait(SOON)
    after = device.link_statistics()
    assert after.round_trips - before.round_trips == 1
    assert after.commands - before.commands == 1
    assert after.sends - before.sends <= 3  # the command; a heartbeat or a release may fall into it


@pytest.mark.interpreted
def test_g12_regions_of_several_lanes_are_one_round_trip_too(far, monkeypatch):
    a, b = far.allocate(4 * N, HOST_VISIBLE), far.allocate(4 * N)
    graph = far.graph()
    graph.copy(a, b)
    graph.fill(b.view(0, 4), b"\1")
    graph.copy(b, a)
    replay = graph.prepare()
    assert len(replay.regions) == 3
    replay.submit().wait(SOON)
    monkeypatch.setattr(far.device().host.pump, "poll", lambda: None)
    before = far.device().link_statistics()
    replay.submit().wait(SOON)
    after = far.device().link_statistics()
    assert after.round_trips - before.round_trips == 1
    assert after.commands - before.commands == 3


def test_g12_the_second_run_is_in_flight_before_the_first_is_back(far):
    device = far.device()
    a = far.allocate(4 * N)
    gate = device.semaphore()
    for queue in device.queues[1:]:
        queue.barrier(wait=gate.at(1))
    graph = far.graph()
    graph.fill(a)
    replay = graph.prepare()
    first, second = replay.submit(), replay.submit()
    in_flight = device.host.link.session.submission.in_flight
    held = sum(len(queue._held) for queue in device.queues)
    assert in_flight + held >= 2
    assert not first.done
    assert not second.done
    gate.signal(1)
    second.wait(SOON)
    assert first.done


def test_g12_slots_are_bound_at_submit(anywhere):
    graph, slot, total = chain(anywhere, 3, slot_size=4 * N)
    result = bytearray(4 * N)
    graph.download(total, result)
    replay = graph.prepare()
    for value in (5, 7):
        step = anywhere.allocate(8 * N, HOST_VISIBLE)
        with step.write(SOON) as guard:
            guard.view[4 * N :] = words(*[value] * N)
        replay.submit({slot: step.view(4 * N)}).wait(SOON)
        assert bytes(result) == words(*[3 * value] * N)


def test_g12_what_is_bound_is_ordered_like_what_is_fixed(far):
    """One submission writes a buffer, the next binds it: the second sees what the first wrote."""
    bound, result = far.allocate(4 * N), bytearray(4 * N)
    write = far.graph()
    write.fill(bound, words(11))
    writes = write.prepare()
    graph, slot, total = chain(far, 2, slot_size=4 * N)
    graph.download(total, result)
    replay = graph.prepare()
    for _ in range(5):
        writes.submit()
        replay.submit({slot: bound}).wait(SOON)
        assert bytes(result) == words(*[22] * N)


def test_g12_a_binding_that_aliases_a_written_one_is_refused(far):
    kernel = far.device().load(samples.load("vector"))["add_i32"]
    out, other = far.allocate(8 * N), far.allocate(4 * N)
    graph = far.graph()
    slot = graph.slot(4 * N)
    graph.kernel(kernel, [slot, other, out.view(0, 4 * N)], (N,))
    replay = graph.prepare()
    with pytest.raises(UsageError, match="share bytes"):
        replay.submit({slot: out.view(4 * N - 4, 4 * N)})
    replay.submit({slot: out.view(4 * N)}).wait(SOON)


def test_g12_the_client_loads_no_driver(uris):
    import subprocess
    import sys

    program = f"""
import sys
from remora.graph import Runtime
with Runtime({uris["tcp"]!r}) as runtime:
    buffer = runtime.allocate(64)
    graph = runtime.graph()
    graph.fill(buffer, b"x")
    graph.prepare().submit().wait(20)
print(sorted(name for name in sys.modules if name.startswith("remora.drivers.") and name.count(".") == 2))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == "['remora.drivers.remote']"


def test_g12_a_trace_of_a_remote_device_is_on_this_clock(far):
    graph, _, _ = chain(far, 3)
    replay = graph.prepare()
    far.start_trace()
    replay.submit().wait(SOON)
    trace = far.finish_trace()
    assert [event.lane for event in trace.events] == ["compute"]
    assert trace.events[0].start_us > -1000
