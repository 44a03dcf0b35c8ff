"""H05, H27: whatever is under way when the session's process dies, every accepted operation ends exactly once."""

import os
import signal
import threading
from random import Random

import pytest

import remora
from remora import samples
from remora.testing.server import ServerProcess

SOON = 20.0
ROUNDS = 30
BULK = 1 << 20
LOST = (remora.DeviceLostError, remora.BrokenError)


@pytest.fixture(scope="module")
def server():
    with ServerProcess(max_sessions=2) as server:
        yield server


class Work:
    """Random operations on one device. Each accepted one has a timepoint and a callback that counts its calls."""

    def __init__(self, device, rng):
        self.device = device
        self.rng = rng
        self.kernel = device.load(samples.load("vector"))["fill_index"]
        self.buffers = [device.allocate(BULK) for _ in range(3)]
        self.gate = device.semaphore()
        self.gate_value = 0
        self.user = device.semaphore()
        self.user_value = 0
        self.points = []
        self.calls = []
        self.kept = []
        self._called = threading.Condition()

    def step(self):
        """Submit one operation. Raises when the session has ended."""
        queue = self.rng.choice(self.device.queues)
        wait = self.rng.choice(self.points) if self.points and self.rng.random() < 0.3 else ()
        what = self.rng.choice([self.fill, self.update, self.read, self.copy, self.dispatch, self.barrier, self.hold, self.let_go])
        point = what(queue, wait)
        if point is not None:
            self.points.append(point)
            self.count(point)

    def count(self, point):
        index = len(self.calls)
        self.calls.append(0)

        def called():
            with self._called:
                self.calls[index] += 1
                self._called.notify_all()

        point.on_done(called)

    def settled(self):
        """Wait until every callback was called."""
        with self._called:
            return self._called.wait_for(lambda: all(self.calls), SOON)

    def buffer(self):
        return self.rng.choice(self.buffers)

    def size(self):
        return self.rng.choice([16, 4096, 65536, 65544, BULK])

    def fill(self, queue, wait):
        return queue.fill(self.buffer(), b"\x01\x02", wait=wait)

    def update(self, queue, wait):
        return queue.update(self.buffer(), bytes(self.size()), wait=wait)

    def read(self, queue, wait):
        self.kept.append(bytearray(self.size()))
        return queue.read(self.buffer(), self.kept[-1], wait=wait)

    def copy(self, queue, wait):
        self.user_value += 1
        source, target = self.rng.sample(self.buffers, 2)
        return queue.copy(source, target, wait=wait, signal=self.user.at(self.user_value) if queue.ordinal == 0 else ())

    def dispatch(self, queue, wait):
        return queue.dispatch(self.kernel, self.kernel.grid_for(1024), [self.buffer()], (1024, 0), wait=wait)

    def barrier(self, queue, wait):
        return queue.barrier(wait=wait)

    def hold(self, queue, wait):
        """Behind something that only the host signals."""
        return queue.barrier(wait=self.gate.at(self.gate_value + 1))

    def let_go(self, queue, wait):
        self.gate_value += 1
        self.gate.signal(self.gate_value)


def wait_in_thread(point, outcomes):
    def run():
        try:
            point.wait(SOON)
            outcomes.append(None)
        except remora.Error as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_h27_every_operation_ends_exactly_once_when_the_session_dies(server, seed):
    rng = Random(seed)
    kill_at = rng.randrange(1, 60)
    outcomes, threads = [], []
    server.wait_for_sessions(0)
    with remora.open(server.uri) as device:
        server.wait_for_sessions(1)
        work = Work(device, rng)
        with pytest.raises(LOST) as ended:
            for number in range(100_000):
                work.step()
                if number < kill_at and rng.random() < 0.1:
                    threads.append(wait_in_thread(rng.choice(work.points), outcomes)) if work.points else None
                if number == kill_at:
                    os.kill(server.session_pids()[0], signal.SIGKILL)
        assert server.addresses[0] in str(ended.value)
        for point in work.points:
            try:
                point.wait(SOON)
            except LOST as error:
                assert "SIGKILL" in str(error) or "connection" in str(error)
                assert server.addresses[0] in str(error)
        assert work.settled()
        for thread in threads:
            thread.join(SOON)
        assert all(error is None or isinstance(error, LOST) for error in outcomes)
        assert len(outcomes) == len(threads)
        for call in (device.queue.barrier, lambda: device.allocate(16), lambda: work.gate.wait(1 << 40, SOON), work.gate.query):
            with pytest.raises(LOST):
                call()
    assert set(work.calls) <= {1}
