"""H04, H05, H08, H16: a link that is long, stands still, or is cut."""

from time import monotonic

import pytest

import remora
from remora import samples
from remora.testing.proxy import DelayProxy, Direction

SOON = 20.0
ONE_WAY = 0.05
DEADLINE = 1.0
SLACK = 2.0
QUERY = f"?keepalive=0.2&deadline={DEADLINE:g}"


@pytest.fixture
def far(serve):
    """(server, proxy before it)"""
    server = serve(max_sessions=1, keepalive=0.3, deadline=1.5)
    with DelayProxy(server.address, ONE_WAY) as proxy:
        yield server, proxy


def fill_index(device):
    """(kernel, buffer of 4096 bytes, the bytes that the kernel writes)"""
    kernel = device.load(samples.load("vector"))["fill_index"]
    return kernel, b"".join(index.to_bytes(4, "little") for index in range(1024))


def test_h16_allocate_fill_dispatch_read_is_one_round_trip_in_time(far):
    _, proxy = far
    with remora.open(f"remote-{proxy.address}") as device:
        kernel, wanted = fill_index(device)
        times, counted = [], []
        for _ in range(5):
            begin, trips = monotonic(), device.link_statistics().round_trips
            buffer = device.allocate(4096)
            device.queue.fill(buffer, b"\0")
            device.queue.dispatch(kernel, kernel.grid_for(1024), [buffer], (1024, 0))
            data = buffer.read(timeout=SOON)
            times.append(monotonic() - begin)
            assert bytes(data) == wanted
            counted.append(device.link_statistics().round_trips - trips)
            buffer.close()
        print("round trips of", ", ".join(f"{seconds * 1e3:.0f} ms" for seconds in times))
        assert max(counted) == 1
        assert 2 * ONE_WAY <= min(times) < 3 * ONE_WAY


def test_h02_transfers_over_a_long_link(far):
    _, proxy = far
    with remora.open(f"remote-{proxy.address}") as device:
        data = bytes(range(256)) * (8 << 12)
        begin = monotonic()
        buffer = device.upload(data)
        assert bytes(buffer.read(timeout=SOON)) == data
        print(f"8 MiB there and back: {monotonic() - begin:.2f} s")
        buffer.close()


def test_h08_a_link_that_stands_still_ends_a_wait(far, works):
    server, proxy = far
    with remora.open(f"remote-{proxy.address}{QUERY}") as device:
        buffer = device.upload(b"x" * 100)
        proxy.stall()
        begin = monotonic()
        with pytest.raises(remora.BrokenError, match="no sign of life for 1 s") as caught:
            buffer.read(timeout=SOON)
        assert monotonic() - begin < DEADLINE + SLACK
        assert proxy.address in str(caught.value)
        server.wait_for("session 1 ended")
        buffer.close()
    works(server.uri)


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_h08_a_link_that_stands_still_ends_a_transfer(far, works, until, direction):
    server, proxy = far
    with remora.open(f"remote-{proxy.address}{QUERY}") as device:
        size = 64 << 20
        buffer = device.allocate(size)
        memory = bytearray(size)
        point = device.queue.update(buffer, memory) if direction == "upload" else device.queue.read(buffer, memory)
        moving = Direction.UP if direction == "upload" else Direction.DOWN
        if direction == "download":
            device.queue.barrier()  # flushes what is written
        until(lambda: proxy.delivered_bytes(moving) > 1 << 16)
        proxy.stall()
        begin = monotonic()
        with pytest.raises(remora.BrokenError, match="no sign of life"):
            point.wait(SOON)
        assert monotonic() - begin < DEADLINE + SLACK
        server.wait_for("session 1 ended")
        buffer.close()
    works(server.uri)


def test_h08_a_link_that_goes_on_in_time_loses_nothing(far):
    _, proxy = far
    with remora.open(f"remote-{proxy.address}") as device:
        buffer = device.upload(b"before")
        proxy.stall()
        point = device.queue.update(buffer, b"BEHIND")
        with pytest.raises(remora.DeadlineError):
            point.wait(0.3)
        proxy.resume()
        point.wait(SOON)
        assert bytes(buffer.read(timeout=SOON)) == b"BEHIND"
        buffer.close()


def test_h05_a_cut_link_ends_everything_at_once(far, works):
    server, proxy = far
    with remora.open(f"remote-{proxy.address}") as device:
        gate = device.semaphore()
        held = device.queue.barrier(wait=gate.at(1))
        proxy.cut()
        begin = monotonic()
        with pytest.raises(remora.BrokenError) as caught:
            held.wait(SOON)
        assert monotonic() - begin < 1
        assert proxy.address in str(caught.value)
        with pytest.raises(remora.BrokenError):
            device.allocate(16)
        server.wait_for("session 1 ended")
    works(server.uri)


def test_h05_one_direction_that_ends_is_the_end(far, works):
    server, proxy = far
    with remora.open(f"remote-{proxy.address}") as device:
        gate = device.semaphore()
        held = device.queue.barrier(wait=gate.at(1))
        proxy.half_close(Direction.DOWN)
        with pytest.raises(remora.BrokenError, match="closed the connection"):
            held.wait(SOON)
        server.wait_for("session 1 ended")
    works(server.uri)


def test_h04_connecting_over_a_link_that_stands_still_has_a_deadline(far):
    _, proxy = far
    proxy.stall()
    begin = monotonic()
    with pytest.raises(remora.DeadlineError, match=r"did not answer as a remora server within 0\.4 s"):
        remora.open(f"remote-{proxy.address}?timeout=0.4")
    assert monotonic() - begin < 5
    proxy.resume()
