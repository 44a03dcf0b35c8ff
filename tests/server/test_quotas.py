"""H07: what a session may have. Whoever asks for more hears which quota it is, and the session goes on."""

import argparse
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.raw import raw_client

import remora
from remora import samples
from remora.base.ids import ResourceType, make_provisional
from remora.errors import BusyError, DeviceError, OutOfMemoryError, Status, UsageError
from remora.server.flags import add_flags, options_of
from remora.server.options import SessionLimits
from remora.server.quotas import Quota, Quotas, parse_size, size_text
from remora.session.events import Unnamed
from remora.session.state import Lane
from remora.wire import commands

LONG = 20.0
MIB = 1 << 20
VECTOR = samples.load("vector")


def refused(device, buffer):
    """Why a buffer could not be made, once the server has said so."""
    device.queue.barrier().wait(LONG)
    with pytest.raises(OutOfMemoryError) as caught:
        buffer.read(timeout=LONG)
    return caught.value


def test_h07_memory_beyond_the_quota_is_refused_by_name_and_comes_back_on_release(serve, mode):
    server = serve("--session-memory", "8MiB", **mode)
    with remora.open(server.uri) as device:
        first = device.allocate(6 * MIB)
        first.write(b"z" * (6 * MIB), timeout=LONG)
        error = refused(device, device.allocate(3 * MIB))
        assert error.code is Status.OUT_OF_DEVICE_MEMORY
        assert "quota of memory: asked for 3 MiB, 6 MiB of 8 MiB are in use" in str(error)
        assert "--session-memory" in str(error)
        with device.allocate(2 * MIB) as rest:
            rest.write(b"y" * (2 * MIB), timeout=LONG)
            refused(device, device.allocate(1))
        first.close()
        for _ in range(3):
            with device.allocate(8 * MIB) as all_of_it:
                device.queue.fill(all_of_it, b"\x01").wait(LONG)


def test_h07_the_quota_of_memory_is_each_sessions_own(serve, mode):
    server = serve("--session-memory", "1MiB", **mode)
    with remora.open(server.uri) as one, remora.open(server.uri) as other:
        kept = [device.allocate(MIB) for device in (one, other)]
        for buffer in kept:
            buffer.device.queue.fill(buffer, b"\x01").wait(LONG)
            refused(buffer.device, buffer.device.allocate(MIB))


def test_h07_memory_of_all_devices_counts_together(serve):
    server = serve("--session-memory", "1MiB", device=("cpu", "null"))
    with remora.connect(server.uri) as host:
        first, second = host.devices
        kept = first.allocate(MIB)
        kept.write(bytes(MIB), timeout=LONG)
        assert "1 MiB of 1 MiB are in use" in str(refused(second, second.allocate(64)))


def test_h07_executables_beyond_the_quota_are_refused_and_come_back(serve, mode):
    server = serve("--session-executables", "1", **mode)
    with remora.open(server.uri) as device:
        first = device.load(VECTOR)
        with pytest.raises(
            BusyError, match=r"quota of executables: asked for 1, 1 of 1 are in use.*--session-executables"
        ) as caught:
            device.load(VECTOR)
        assert caught.value.code is Status.RESOURCE_EXHAUSTED
        device.queue.dispatch(first["empty"], (1, 1, 1), []).wait(LONG)
        first.close()
        for _ in range(20):
            device.load(VECTOR).close()
        second = device.load(VECTOR)
        device.queue.dispatch(second["empty"], (1, 1, 1), []).wait(LONG)


def test_h07_an_executable_that_could_not_be_loaded_costs_no_quota(serve):
    server = serve("--session-executables", "1")
    with remora.open(server.uri) as device:
        target = device.targets[0]
        for _ in range(3):
            with pytest.raises(UsageError, match="artifact"):
                device.load_artifact(target, b"this is no code", VECTOR.kernels)
        device.load(VECTOR)


def upload(raw, queue, buffer, transfer_id):
    epoch = raw.command(queue, commands.UPLOAD, commands.encode_transfer(buffer, 0, 1 << 17, transfer_id))
    raw.send()
    return epoch


def test_h07_transfers_beyond_the_quota_fail_their_queue_only(serve, mode):
    server = serve("--session-transfers", "2", **mode)
    with raw_client(server.uri) as raw:
        buffer = raw.session.allocate(0, 1 << 17)
        first, _ = upload(raw, 0, buffer, 1), upload(raw, 1, buffer, 3)
        failure = raw.advanced(2, upload(raw, 2, buffer, 5)).failure
        assert isinstance(failure, BusyError)
        assert "quota of transfers: asked for 1, 2 of 2 are in use" in str(failure)
        assert "--session-transfers" in str(failure)
        raw.send_artifact(bytes(1 << 17), 1)
        assert raw.advanced(0, first).failure is None
        last = upload(raw, 3, buffer, 7)
        raw.send_artifact(bytes(1 << 17), 7)
        assert raw.advanced(3, last).failure is None


def test_h07_a_transfer_that_fails_gives_its_place_back(serve):
    server = serve("--session-transfers", "1")
    with raw_client(server.uri) as raw:
        buffer = raw.session.allocate(0, 1 << 17)
        for queue, transfer_id in ((0, 1), (1, 3)):
            epoch = upload(raw, queue, buffer, transfer_id)
            raw.abort_artifact(DeviceError("the disk is on fire"), transfer_id)
            assert "the disk is on fire" in str(raw.advanced(queue, epoch).failure)
        assert "there is no buffer" in str(raw.advanced(2, upload(raw, 2, make_provisional(ResourceType.BUFFER, 99), 5)).failure)
        last = upload(raw, 3, buffer, 7)
        raw.send_artifact(bytes(1 << 17), 7)
        assert raw.advanced(3, last).failure is None


def test_h07_what_the_device_has_not_costs_no_quota(serve):
    server = serve("--session-memory", "1048576TiB")
    with raw_client(server.uri) as raw:
        for _ in range(2):
            raw.session.allocate(0, 1 << 60)
            raw.send()
        raw.until(Lane.QUEUE, lambda event: isinstance(event, Unnamed) and "quota" not in str(event.error))
        second = raw.until(Lane.QUEUE, lambda event: isinstance(event, Unnamed) and event is not raw.events[0])
        assert "quota" not in str(second.error)


def test_h07_resources_beyond_the_quota_are_refused_and_come_back(serve, mode):
    server = serve("--session-resources", "2", **mode)
    with remora.open(server.uri) as device:
        first, second = device.allocate(64), device.allocate(64)
        third = device.allocate(64)
        device.queue.barrier().wait(LONG)
        with pytest.raises(BusyError, match=r"quota of resources: asked for 1, 2 of 2 are in use.*--session-resources"):
            third.read(timeout=LONG)
        first.close()
        device.allocate(64).write(bytes(64), timeout=LONG)
        second.write(bytes(64), timeout=LONG)


def test_a_session_process_may_have_as_many_descriptors_as_the_system_allows(serve):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = serve()
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (min(soft, 64), hard))
    with remora.open(server.uri):
        (pid,) = server.session_pids()
        limits = Path(f"/proc/{pid}/limits").read_text()
    found = re.search(r"Max open files +(\d+) +(\d+)", limits)
    assert found is not None
    assert found[1] == found[2]


# -- without a server ---------------------------------------------------------------------------------------------------------


@given(limit=st.integers(0, 20), steps=st.lists(st.integers(-10, 10)))
def test_h07_a_quota_never_gives_more_than_it_has(limit, steps):
    quota = Quota("the quota", "--flag", limit, str, BusyError)
    used = 0
    for step in steps:
        if step < 0:
            back = min(-step, used)
            quota.give_back(back)
            used -= back
        elif used + step <= limit:
            quota.take(step)
            used += step
        else:
            with pytest.raises(BusyError, match=f"asked for {step}, {used} of {limit} are in use"):
                quota.take(step)
        assert quota.used == used


def test_h07_an_object_is_settled_once():
    quotas, thing = Quotas(SessionLimits(memory=10)), object()
    quotas.memory.take(4)
    quotas.charge(thing, quotas.memory, 4)
    quotas.settle(thing)
    quotas.settle(thing)
    assert quotas.memory.used == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("1B", 1), ("2KiB", 2048), ("512 MiB", 512 << 20), ("2GiB", 2 << 30), ("1.5GiB", 3 << 29), ("1TiB", 1 << 40)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2GB", "-1", "1e3", "2 gib", "0x10", "1,5GiB"])
def test_sizes_that_are_none(text):
    with pytest.raises(UsageError, match=r"is no size: give bytes, or a number with KiB"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_what_is_said_of_a_size_is_exact_or_short(size):
    text = size_text(size).replace(",", "")
    assert abs(parse_size(text) - size) <= size * 0.01


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (3 * MIB, "3 MiB"), (3 << 29, "1.5 GiB"), (MIB + 1, "1,048,577 B")]
)
def test_sizes_for_people(size, text):
    assert size_text(size) == text


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_flags(parser)
    options = options_of(parser.parse_args(words), print)
    return options.limits, options.drain_timeout


def test_h07_flags():
    assert parsed() == (SessionLimits(), 5.0)
    words = (
        "--session-memory 2GiB --session-transfers 3 --session-executables 4 --session-resources 5 "
        "--idle-timeout 6 --drain-timeout 0"
    )
    assert parsed(*words.split()) == (SessionLimits(2 << 30, 3, 4, 5, 6.0), 0.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--session-memory", "much"), "--session-memory: 'much' is no size"),
        (("--session-transfers", "0"), "--session-transfers 0: give a number from 1"),
        (("--session-executables", "-1"), "--session-executables -1: give a number from 1"),
        (("--session-resources", "0"), "--session-resources 0: give a number from 1"),
        (("--idle-timeout", "0"), "--idle-timeout 0: give seconds above 0"),
        (("--idle-timeout", "nan"), "--idle-timeout nan: give seconds above 0"),
        (("--drain-timeout", "-1"), "--drain-timeout -1: give seconds from 0"),
    ],
)
def test_h07_flags_that_make_no_sense(words, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        parsed(*words)
