"""H05, H26, H27: one failure at every place where link and server wait, do I/O, or ask the system for something.

After each the client has the right result or one Error, soon; nothing is left on either side, and the next client is served.
"""

import contextlib

import pytest
from tests.faults.injecting import InjectedService, Trials

from remora.testing.injected import injected
from remora.testing.injection import FAILURES, Injector

SIDES = ["client", "process", "shared"]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A lane that breaks alone waits for the peer's reason, which does not come here, for less than a second."""
    monkeypatch.setattr("remora.link.link.GRACE", 0.05)


@pytest.fixture
def trials(tmp_path, leaves_nothing, few_objects):
    """trials(side, scheme) -> Trials with the client, or a server with processes or threads, under an injector."""
    with contextlib.ExitStack() as stack:

        def run(side, scheme):
            injector, idle = stack.enter_context(Injector()), stack.enter_context(Injector())
            bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/s"
            steered = idle if side == "client" else injector
            server = stack.enter_context(InjectedService(steered, bind=bind, shared=side == "shared"))
            if side == "client":
                stack.enter_context(injected(injector))
            trials = Trials(injector, server)
            stack.enter_context(trials.watch_threads())
            return trials

        yield run


def run_all(trials, passes):
    """Every failure of every point, at each of these passes; points that are passed less often are left out."""
    points = trials.points()
    for point in points:
        for failure in point.failures:
            for nth in passes:
                if nth <= max(1, point.passes // 2):
                    trials.try_one(point, failure, nth)
    story = "\n".join(trials.story)
    assert not trials.story, f"{len(trials.story)} of {trials.runs} trials went wrong:\n{story}"
    return points


@pytest.mark.timeout(180)  # on a busy machine
@pytest.mark.parametrize("side", ["client", *(pytest.param(side, marks=pytest.mark.slow) for side in SIDES[1:])])
def test_h05_every_await_may_fail_once(trials, side):
    run = trials(side, "tcp")
    points = run_all(run, (1,))
    print(f"{len(points)} points, {run.runs} failures, {run.fired} of them met")
    assert run.fired > run.runs * 0.8
    met = {point.primitive for point in points}
    assert {"recv_into", "send", "sendmsg", "poll", "thread", "eventfd", "setsockopt"} <= met
    assert ("fork" in met) == (side == "process")
    assert {"recv_into", "bulk.py"} <= {
        word for point in points for word in (point.primitive, *point.name.replace("/", ":").split(":"))
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_h05_every_await_may_fail_at_each_of_its_first_passes(trials, side, scheme):
    run = trials(side, scheme)
    points = run_all(run, (1, 2, 3, 4, 6, 8, 12))
    print(f"{len(points)} points, {run.runs} failures, {run.fired} of them met")
    assert run.fired > run.runs // 2


@pytest.mark.parametrize("side", SIDES)
def test_h05_a_line_that_is_cut_after_any_number_of_bytes(trials, side):
    """Every socket fails at once after so many bytes: in the greeting, in a frame, in a chunk, in the goodbye."""
    run = trials(side, "tcp")
    for bytes_left in (0, 100, 500, 1000, 4000, MIB // 2, MIB * 2 + 10_000):
        run.attempt(f"a cut after {bytes_left} bytes", lambda left=bytes_left: run.injector.cut(left))
    assert not run.story, "\n".join(run.story)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_h05_a_line_that_is_cut_at_each_of_many_places(trials, side, scheme):
    run = trials(side, scheme)
    for bytes_left in (*range(0, 2000, 61), *range(2000, 2 * MIB + 30_000, 61_987)):
        run.attempt(f"a cut after {bytes_left} bytes", lambda left=bytes_left: run.injector.cut(left))
    assert not run.story, "\n".join(run.story)


@pytest.mark.parametrize(("side", "scheme"), [("client", "unix"), ("process", "tcp"), ("shared", "unix")])
def test_h05_short_transfers_and_full_buffers_change_nothing(trials, side, scheme):
    """EAGAIN at every second call and pieces of any size: the job is right each time."""
    run = trials(side, scheme)
    for seed in range(2):
        run.attempt(f"storm {seed}", lambda seed=seed: run.injector.storm(seed))
        assert run.last is None, f"storm {seed}: {run.last}"
    assert not run.story, "\n".join(run.story)


def test_every_primitive_says_how_it_may_fail():
    assert all(FAILURES.values())
