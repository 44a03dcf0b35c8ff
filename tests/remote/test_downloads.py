"""H13: news of an operation comes by another lane than a download's bytes; what followed the download is done after them."""

import threading

import pytest
from tests.faults.processes import wait_until

import remora
from remora.link.strand import Strand
from remora.testing.server import ServerProcess

LONG = 20.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def server():
    with ServerProcess() as server:
        yield server


@pytest.fixture
def device(server):
    with remora.open(server.uri) as device:
        yield device


@pytest.fixture
def hold(monkeypatch):
    """Whoever receives bulk data stops before it reads the first chunk, until `hold` is set."""
    go_on, read = threading.Event(), Strand.read

    def stopped(self, into):
        go_on.wait(LONG)
        read(self, into)

    monkeypatch.setattr(Strand, "read", stopped)
    yield go_on
    go_on.set()


def told(queue, point):
    return queue._told >= point.value


def test_h13_what_waited_for_a_download_on_another_queue_is_done_after_its_bytes(device, hold):
    first, second = device.queues[:2]
    with device.allocate(MIB) as buffer:
        room = bytearray(MIB)
        first.fill(buffer, b"\x05")
        download = first.read(buffer, room)
        shared = device.semaphore()
        after = second.barrier(wait=download, signal=shared.at(1))
        later = second.barrier()
        called = []
        after.on_done(lambda: called.append(bytes(room[:1])))
        wait_until(lambda: told(first, download) and told(second, later))
        for point in (download, after, later, shared.at(1)):
            assert not point.done
            with pytest.raises(remora.DeadlineError):
                point.wait(0.01)
        assert called == []
        hold.set()
        later.wait(LONG)
        assert room == b"\x05" * MIB
        assert download.done
        assert after.done
        shared.at(1).wait(LONG)
        wait_until(lambda: called)
        assert called == [b"\x05"]
        assert not device.host.behind


def test_h13_a_queue_that_waited_for_nothing_goes_on(device, hold):
    first, second = device.queues[:2]
    with device.allocate(MIB) as buffer:
        room = bytearray(MIB)
        download = first.read(buffer, room)
        wait_until(lambda: told(first, download))
        second.fill(buffer, b"\x06").wait(LONG)
        assert not download.done
        hold.set()
        download.wait(LONG)


def test_h13_a_chain_over_three_queues_ends_in_order(device, hold):
    if len(device.queues) < 3:
        pytest.skip("this device has fewer than three queues: serve one with more")
    first, second, third = device.queues[:3]
    with device.allocate(MIB) as buffer:
        room = bytearray(MIB)
        download = first.read(buffer, room)
        point = third.barrier(wait=second.barrier(wait=download))
        wait_until(lambda: told(first, download) and told(third, point))
        assert not point.done
        hold.set()
        point.wait(LONG)
        assert download.done


def test_h05_a_download_that_never_comes_holds_up_nobody(device, hold):
    """The session ends with its bytes under way: everything behind them ends with the cause, and no wait hangs."""
    first, second = device.queues[:2]
    with device.allocate(MIB) as buffer:
        download = first.read(buffer, bytearray(MIB))
        after = second.barrier(wait=download)
        wait_until(lambda: told(first, download) and told(second, after))
        device.host.link.fail(remora.BrokenError("the cable was pulled"))
        hold.set()
        for point in (download, after):
            with pytest.raises(remora.BrokenError, match="the cable was pulled"):
                point.wait(LONG)
