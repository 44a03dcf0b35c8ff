"""H05, H06: sessions come and go for as long as one likes, and the server is as it was: memory, descriptors, threads."""

import os
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import remora
from remora import samples

SOON = 20.0
#: Sessions after which caches, arenas and free lists have their size.
WARM_UP = 60
#: By how much memory may be more after the sessions than after the warm-up.
MOST = 1.05
SIZE = 256 << 10
#: Sessions that the server admits.
AT_MOST = 20


def resident_bytes(pid):
    """(resident, proportional anonymous) bytes of a process.

    The proportional set without files: what is mapped from files moves with whoever else has the same libraries open.
    """
    fields = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    sizes = {field[0]: int(field[1]) * 1024 for field in fields}
    return sizes["Rss:"], sizes["Pss_Anon:"] + sizes["Pss_Shmem:"]


def held(pid):
    """(descriptors, threads) of a process."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def session(uri, meet=lambda: None):
    """Connect, load, allocate, upload, dispatch, download, leave. With everything still held it calls `meet`."""
    with remora.open(uri, retry=SOON) as device:
        kernel = device.load(samples.load("vector"))["fill_index"]
        with device.allocate(SIZE) as buffer:
            device.queue.update(buffer, b"\x11" * SIZE)
            device.queue.dispatch(kernel, kernel.grid_for(16), [buffer.view(0, 64)], (16, 0))
            data = bytes(buffer.read(timeout=SOON))
            meet()
        assert data[:64] == b"".join(index.to_bytes(4, "little") for index in range(16))
        assert data[64:] == b"\x11" * (SIZE - 64)


class Server:
    """A server that is looked at between sessions."""

    def __init__(self, service):
        self.service = service
        self.ended = 0

    def run(self, count, at_once=1, meet=lambda: None):
        """So many sessions, a few at a time; raises what one of them raised."""
        failures = []

        def one():
            try:
                session(self.service.uri, meet)
            except BaseException as error:
                failures.append(error)

        for _ in range(count // at_once):
            threads = [threading.Thread(target=one) for _ in range(at_once - 1)]
            for thread in threads:
                thread.start()
            one()
            for thread in threads:
                thread.join(SOON)
            assert not failures, failures
        self.ended += count
        self.service.wait_for(" ended", SOON, count=self.ended)

    def facts(self, until):
        until(lambda: not self.service.session_pids() and held(self.service.pid)[1] == 1)
        return resident_bytes(self.service.pid), held(self.service.pid)


def check_flat(server, until, count, at_once):
    """The server keeps what its busiest moment needed (warm device memory, stacks), so that moment belongs to the warm-up."""
    server.run(AT_MOST, AT_MOST, threading.Barrier(AT_MOST, timeout=SOON).wait)
    server.run(WARM_UP if at_once == 1 else 8 * at_once, at_once)
    before = server.facts(until)
    server.run(count, at_once)
    after = server.facts(until)
    story = f"{count} sessions, {at_once} at once: (RSS, PSS without files) {before[0]} to {after[0]} bytes"
    print(story)
    assert all(now <= then * MOST for then, now in zip(before[0], after[0], strict=True)), story
    assert after[1] == before[1], f"(descriptors, threads) were {before[1]} and are {after[1]}"


@pytest.fixture(params=[False, True], ids=["processes", "shared"])
def server(request, serve, monkeypatch):
    """One malloc arena: the C library gives each new thread one of many, which fill up one after the other for a long time."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    return Server(serve("tcp", shared=request.param, max_sessions=AT_MOST))


def test_h06_forty_sessions_leave_the_server_as_it_was(server, until):
    check_flat(server, until, 40, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_h06_a_thousand_sessions_leave_the_server_as_it_was(server, until):
    check_flat(server, until, 1000, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_h06_sixteen_sessions_at_once_leave_the_server_as_it_was(server, until):
    check_flat(server, until, 320, 16)


def test_h06_sixteen_sessions_side_by_side(serve):
    """All open at the same time, each with a right answer."""
    service = serve("unix", max_sessions=16)
    with ExitStack() as stack:
        devices = [stack.enter_context(remora.open(service.uri)) for _ in range(16)]
        buffers = [stack.enter_context(device.upload(bytes([number]) * 100)) for number, device in enumerate(devices)]
        assert [bytes(buffer.read(timeout=SOON))[0] for buffer in buffers] == list(range(16))
