"""H09, H10, H04: several devices behind one address, and the ways to open them."""

import socket

import pytest

import remora
from remora.errors import BrokenError, ClosedError, DeadlineError, NotFoundError, UsageError
from remora.testing.cts.hal_factory import background
from remora.testing.server import ServerProcess, SharedServer

LONG = 20.0


@pytest.fixture(scope="module")
def server():
    with ServerProcess(device=("cpu", "null")) as server:
        yield server


def test_h09_every_served_device_is_usable(server):
    with remora.connect(server.uri) as host:
        assert [device.info.driver for device in host.devices] == ["cpu", "null"]
        for device in host.devices:
            for queue in device.queues:
                with device.allocate(200_000) as buffer:
                    into = bytearray(200_000)
                    queue.update(buffer, b"z" * 200_000)
                    queue.read(buffer, into).wait(LONG)
                    assert into == b"z" * 200_000
    assert all(device.closed for device in host.devices)


def test_h09_one_device_is_picked(server):
    with remora.open(f"{server.uri}?device=1") as device:
        assert device.info.driver == "null"
        assert bytes(device.upload(b"abc").read(timeout=LONG)) == b"abc"
    with pytest.raises(NotFoundError, match="2 devices, numbered from 0"):
        remora.open(f"{server.uri}?device=2")
    with pytest.raises(UsageError, match=r"use remora\.open"):
        remora.connect(f"{server.uri}?device=0")


def test_h09_one_device_of_a_host_closes_and_the_other_goes_on(server):
    with remora.connect(server.uri) as host:
        first, second = host.devices
        gate = first.semaphore()
        late = first.queue.barrier(wait=gate.at(1))
        waiting = [background(lambda: late.wait(LONG)), background(lambda: gate.wait(1, LONG))]
        first.close()
        for future in waiting:
            with pytest.raises(ClosedError):
                future.result(LONG)
        with pytest.raises(ClosedError):
            first.queue.barrier()
        assert bytes(second.upload(b"abc").read(timeout=LONG)) == b"abc"
        assert not second.closed


def test_h09_buffers_of_two_devices_of_one_host_do_not_mix(server):
    with remora.connect(server.uri) as host:
        first, second = host.devices
        with first.allocate(8) as mine, pytest.raises(UsageError, match="another device"):
            second.queue.fill(mine)


def test_h11_queues_of_two_devices_wait_for_each_other(server):
    with remora.connect(server.uri) as host:
        first, second = host.devices
        ping, pong = first.semaphore(), second.semaphore()
        for step in range(1, 21):
            second.queue.barrier(wait=ping.at(step), signal=pong.at(step))
            first.queue.barrier(wait=pong.at(step - 1), signal=ping.at(step))
        pong.wait(20, LONG)
        assert (ping.value, pong.value) == (20, 20)


def test_h10_open_tries_again_while_nobody_listens(tmp_path):
    uri = f"remote-unix://{tmp_path}/late"
    with pytest.raises(BrokenError):
        remora.open(uri)
    opening = background(lambda: remora.open(uri, retry=LONG))
    with ServerProcess(bind=f"unix://{tmp_path}/late"), opening.result(LONG) as device:
        device.queue.barrier().wait(LONG)


def test_h04_connecting_has_a_deadline(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"remote-tcp://127.0.0.1:{silent.getsockname()[1]}?timeout=0.2"
        with pytest.raises(DeadlineError, match="did not answer as a remora server"):
            remora.open(uri)


@pytest.mark.parametrize("query", ["?speed=9", "?timeout=soon", "?device=x", "?timeout=1&timeout=2"])
def test_h10_wrong_options_are_named(server, query):
    with pytest.raises(UsageError, match=query[1:].split("=")[0]):
        remora.open(server.uri + query)


def test_h31_a_server_listens_on_several_addresses(tmp_path):
    with SharedServer(bind=("loopback://", "tcp://127.0.0.1:0", f"unix://{tmp_path}/s")) as server:
        for uri in server.uris:
            with remora.open(uri) as device, device.upload(uri.encode()) as buffer:
                assert bytes(buffer.read(timeout=LONG)) == uri.encode()


def test_h26_a_server_without_its_device_does_not_start():
    with pytest.raises(BrokenError, match="no driver for 'nothing'"):
        ServerProcess(device="nothing").start()
