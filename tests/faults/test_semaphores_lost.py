"""H11, H13: semaphores whose connection is lost fail with the cause, for good, and so does what waits for them."""

import asyncio
import os
import signal
import threading

import pytest

import remora

SOON = 20.0


def kill(server, number=1):
    os.kill(server.session_of(number), signal.SIGKILL)


def lost():
    return pytest.raises(remora.DeviceLostError, match="SIGKILL")


def test_h11_a_wait_before_signal_ends_with_the_cause_and_stays_so(serve):
    server = serve()
    with remora.open(server.uri) as device:
        done, never = device.semaphore(), device.semaphore()
        device.queue.barrier(signal=done.at(7)).wait(SOON)
        kill(server)
        with lost():
            never.wait(1, SOON)
        assert done.value == 7
        done.wait(7, SOON)  # what was reached before stays reached
        for call in (lambda: done.wait(8, SOON), never.query, lambda: never.signal(1), lambda: never.at(1).wait(SOON)):
            with lost():
                call()
        assert str(never.failure) == str(done.failure)
    with lost():  # the first cause, not that the device was closed later
        never.wait(1, SOON)


def test_h11_every_waiter_of_every_kind_gets_the_cause_once(serve):
    server = serve()
    with remora.open(server.uri) as device:
        semaphore = device.semaphore()
        errors, called, all_called = [], [], threading.Event()

        def wait():
            try:
                semaphore.wait(1, SOON)
            except remora.Error as error:
                errors.append(error)

        def callback():
            called.append(semaphore.failure)
            if len(called) == 5:
                all_called.set()

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        for value in range(1, 6):
            semaphore.on(value, callback)

        async def await_it():
            held = device.queue.barrier(wait=semaphore.at(1))
            waiting = asyncio.create_task(wait_for(held))
            await asyncio.sleep(0)
            kill(server)
            with lost():
                await asyncio.wait_for(waiting, SOON)

        async def wait_for(point):
            await point

        asyncio.run(await_it())
        for thread in threads:
            thread.join(SOON)
        assert all_called.wait(SOON)
        assert len(errors) == 4
        assert {type(error) for error in errors} == {remora.DeviceLostError}
        assert {str(error) for error in (*errors, *called)} == {str(semaphore.failure)}
    assert len(called) == 5


def test_h13_an_operation_behind_a_host_signal_fails_with_all_its_signals(serve):
    """Held on this side when the server dies: it never goes, and what it would have signalled fails too."""
    server = serve()
    with remora.open(server.uri) as device:
        gate, first, second = device.semaphore(), device.semaphore(), device.semaphore()
        held = device.queue.barrier(wait=gate.at(1), signal=(first.at(1), second.at(5)))
        behind = device.queue.barrier()
        kill(server)
        for point in (held, behind, first.at(1), second.at(5)):
            with lost():
                point.wait(SOON)
        assert (first.value, second.value) == (0, 0)
        assert str(first.failure) == str(second.failure) == str(device.queue.timeline.failure)


def test_h13_an_operation_that_waits_for_a_lost_device_fails_with_its_cause(serve, works):
    """Two servers: the second one's queue waits for the first one's, which dies. Its other queue does not care."""
    first, second = serve("tcp"), serve("unix")
    with remora.open(first.uri) as source, remora.open(second.uri) as sink:
        never = source.queue.barrier(wait=source.semaphore().at(1))
        signalled = sink.semaphore()
        dependent = sink.queue.barrier(wait=never, signal=signalled.at(1))
        kill(first)
        with lost() as caught:
            dependent.wait(SOON)
        assert first.address in str(caught.value)
        with lost():
            signalled.wait(1, SOON)
        with lost():
            sink.queue.barrier()
        sink.queues[1].barrier().wait(SOON)
    works(first.uri)
    works(second.uri)


def test_h13_a_local_device_that_waits_for_a_lost_one(serve):
    server = serve()
    with remora.open(server.uri) as far, remora.open("cpu") as near:
        never = far.queue.barrier(wait=far.semaphore().at(1))
        dependent = near.queue.barrier(wait=never)
        kill(server)
        with lost() as caught:
            dependent.wait(SOON)
        assert server.address in str(caught.value)


def test_h13_a_host_semaphore_outlives_the_device_that_waited_for_it(serve):
    """A semaphore of another device is not the lost one's to fail."""
    server = serve()
    with remora.open(server.uri) as far, remora.open("cpu") as near:
        gate = near.semaphore()
        held = far.queue.barrier(wait=gate.at(1))
        kill(server)
        with lost():
            held.wait(SOON)
        assert gate.failure is None
        gate.signal(1)
        near.queue.barrier(wait=gate.at(1)).wait(SOON)
