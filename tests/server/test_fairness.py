"""H07: sessions get their turns. Two clients that do the same get about as much done, in one server process too."""

import subprocess
import sys

import pytest

LONG = 20.0
#: A busy machine may hold a client itself up for a while. A session that is starved is starved in every window.
WINDOWS = 4
#: Says how many commands it got done in each window that it is told to begin.
CLIENT = """
import sys, time
import remora

uri, kind = sys.argv[1:]
with remora.open(uri) as device:
    queue = device.queue
    queue.barrier().wait(20)
    print("ready", flush=True)
    for line in sys.stdin:
        count, until = 0, time.monotonic() + 1.0
        while time.monotonic() < until:
            if kind == "flood":
                for _ in range(200):
                    point = queue.barrier()
                count += 200
                if count % 2000 == 0:
                    point.wait(20)
            else:
                queue.barrier().wait(20)
                count += 1
        queue.barrier().wait(20)
        print(count, flush=True)
"""


class Client:
    """A client process, whose commands wait for each answer (`ask`) or for every 2,000th (`flood`)."""

    def __init__(self, uri, kind):
        command = [sys.executable, "-c", CLIENT, uri, kind]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def heard(self):
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.kill()
        self.process.communicate(timeout=LONG)


@pytest.fixture
def clients(serve, mode):
    """clients(*kinds) -> running clients of one server."""
    uri, running = serve(**mode).uri, []

    def run(*kinds):
        running.extend(Client(uri, kind) for kind in kinds)
        for client in running:
            assert client.heard() == "ready"
        return running

    yield run
    for client in running:
        client.close()


def window(clients):
    """How many commands each gets done in the same second."""
    for client in clients:
        client.begin()
    return [int(client.heard()) for client in clients]


@pytest.mark.parametrize("kind", ["flood", "ask"])
def test_h07_two_busy_clients_get_about_as_much_done(clients, kind):
    both, seen = clients(kind, kind), []
    for _ in range(WINDOWS):
        seen.append(window(both))
        if max(seen[-1]) < 3 * min(seen[-1]):
            return
    pytest.fail(f"one session was starved in every window: {seen}")


def test_h07_a_client_that_floods_leaves_room_for_one_that_asks(clients):
    """The one that asks waits for its turn with each command, so it gets fewer done, and never none."""
    both, seen = clients("flood", "ask"), []
    for _ in range(WINDOWS):
        seen.append(window(both))
        if seen[-1][1] > 50:
            return
    pytest.fail(f"the client that asks was starved in every window: {seen}")
