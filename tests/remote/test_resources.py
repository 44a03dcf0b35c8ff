"""H14, H15: ids on the server, seen by a client that writes its own frames."""

import pytest
from tests.remote.raw import LONG

from remora import samples
from remora.base.ids import ResourceType, make_provisional
from remora.errors import BusyError, DeviceError, NotFoundError, UsageError
from remora.server.resources import ResourceTable
from remora.session.events import Named, Responded, Unnamed
from remora.session.state import Lane
from remora.wire import commands

VECTOR = samples.load("vector")
FILL_INDEX = [info.name for info in VECTOR.kernels].index("fill_index")
EMPTY = [info.name for info in VECTOR.kernels].index("empty")


def dispatch_empty(raw, executable):
    return raw.command(0, commands.DISPATCH, commands.encode_dispatch(executable, EMPTY, (1, 1, 1), [], b""))


def test_h14_a_dispatch_waits_for_the_executable_that_is_being_loaded(raw):
    """Behind it everything on its axis waits too; another axis goes on. It runs once the code is there."""
    executable, artifact = raw.begin_load(VECTOR)
    buffer = raw.session.allocate(0, 16)
    body = commands.encode_dispatch(executable, FILL_INDEX, (1, 1, 1), [buffer, 0, 16], (4).to_bytes(4, "little") + bytes(4))
    parked = raw.command(0, commands.DISPATCH, body)
    behind = raw.command(0, commands.READ, commands.encode_range(buffer, 0, 16))
    other = raw.command(1, commands.BARRIER)
    raw.send()
    raw.advanced(1, other)
    assert raw.progress(0) == []
    raw.send_artifact(artifact)
    raw.advanced(0, behind)
    assert [epoch for epoch, _ in raw.progress(0)][-1] == behind == parked + 1
    assert all(failure is None for _, failure in raw.progress(0))
    answer = raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded)).body
    dispatch_empty(raw, answer.resource)  # the canonical id means the same
    last = dispatch_empty(raw, executable)
    raw.send()
    raw.advanced(0, last)


def test_h14_a_dispatch_fails_with_the_load_it_waits_for(raw):
    executable, _ = raw.begin_load(VECTOR)
    parked = dispatch_empty(raw, executable)
    dispatch_empty(raw, executable)
    other = raw.command(1, commands.BARRIER)
    raw.send()
    raw.advanced(1, other)
    raw.abort_artifact(DeviceError("the disk is on fire"))
    event = raw.advanced(0, parked)
    assert event.epoch == parked
    assert "the disk is on fire" in str(event.failure)
    answer = raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded)).body
    assert "the disk is on fire" in str(answer)


def test_h14_a_dispatch_fails_with_an_artifact_that_is_none(raw):
    executable, artifact = raw.begin_load(VECTOR)
    parked = dispatch_empty(raw, executable)
    raw.send()
    raw.send_artifact(bytes(len(artifact)))
    event = raw.advanced(0, parked)
    assert isinstance(event.failure, UsageError)
    assert "artifact" in str(event.failure)


def test_h14_another_axis_may_wait_for_what_is_parked(raw):
    executable, artifact = raw.begin_load(VECTOR)
    parked = dispatch_empty(raw, executable)
    waiting = raw.command(1, commands.BARRIER, waits=((raw.axes[0], parked),))
    free = raw.command(2, commands.BARRIER)
    raw.send()
    raw.advanced(2, free)
    assert raw.progress(1) == []
    raw.send_artifact(artifact)
    raw.advanced(1, waiting)


def test_h15_a_release_waits_for_the_commands_before_it(raw):
    """The buffer is released while a command that names it is parked; it lives until that has run."""
    executable, artifact = raw.begin_load(VECTOR)
    buffer = raw.session.allocate(0, 4)
    dispatch_empty(raw, executable)
    filled = raw.command(0, commands.FILL, commands.encode_fill(buffer, 0, 4, b"x"))
    raw.session.release([buffer, executable])
    other = raw.command(1, commands.BARRIER)
    raw.send()
    raw.advanced(1, other)
    raw.send_artifact(artifact)
    assert raw.advanced(0, filled).failure is None
    late = raw.command(0, commands.FILL, commands.encode_fill(buffer, 0, 4, b"x"))
    raw.send()
    assert isinstance(raw.advanced(0, late).failure, NotFoundError)


def test_h14_a_fresh_buffer_is_usable_at_once_and_gets_its_name(raw):
    buffer = raw.session.allocate(0, 8)
    epoch = raw.command(0, commands.FILL, commands.encode_fill(buffer, 0, 8, b"y"))
    raw.send()
    assert raw.advanced(0, epoch).failure is None
    names = [event for event in raw.events if isinstance(event, Named)]
    assert [name.provisional for name in names] == [buffer]
    epoch = raw.command(0, commands.FILL, commands.encode_fill(names[0].canonical, 0, 8, b"z"))
    raw.send()
    assert raw.advanced(0, epoch).failure is None


def test_h14_a_buffer_that_cannot_be_made_fails_what_names_it(raw):
    heap = raw.session.accepted.devices[0].heaps[0]
    buffer = raw.session.allocate(0, heap.size * 2)
    epoch = raw.command(0, commands.FILL, commands.encode_fill(buffer, 0, 8, b"y"))
    raw.send()
    assert "asked for" in str(raw.advanced(0, epoch).failure)
    assert [event.provisional for event in raw.events if isinstance(event, Unnamed)] == [buffer]


def test_h15_stale_and_unknown_ids_are_no_error_to_release(raw):
    buffer = raw.session.allocate(0, 8)
    raw.session.release([buffer, buffer, buffer + 12345])
    epoch = raw.command(0, commands.BARRIER)
    raw.send()
    assert raw.advanced(0, epoch).failure is None


def test_h12_advance_is_contiguous_and_one_failure_ends_the_axis(raw):
    buffer = raw.session.allocate(0, 8)
    for _ in range(50):
        good = raw.command(0, commands.FILL, commands.encode_fill(buffer, 0, 8, b"a"))
    bad = raw.command(0, commands.COPY, commands.encode_copy(buffer, 4, 100, buffer, 0))
    for _ in range(50):
        raw.command(0, commands.FILL, commands.encode_fill(buffer, 0, 8, b"b"))
    raw.send()
    raw.advanced(0, bad)
    other = raw.command(1, commands.BARRIER)
    dead = raw.command(2, commands.BARRIER, waits=((raw.axes[0], good + 20),))
    raw.send()
    raw.advanced(1, other)
    assert raw.advanced(2, dead).failure is not None
    progress = raw.progress(0)
    epochs = [epoch for epoch, _ in progress]
    assert epochs == sorted(set(epochs))
    assert good in epochs
    assert [(epoch, type(failure)) for epoch, failure in progress if failure is not None] == [(bad, UsageError)]
    assert epochs[-1] == bad


def test_h15_ten_thousand_cycles_on_a_table_of_256_slots():
    table = ResourceTable(capacity=256)
    seen, given_back = set(), []
    live = []
    for number in range(1, 10_001):
        provisional = make_provisional(ResourceType.BUFFER, number)
        canonical = table.add(provisional, ResourceType.BUFFER, number)
        assert canonical not in seen
        seen.add(canonical)
        live.append((canonical, number))
        if len(live) == 256:
            with pytest.raises(BusyError, match="256 of 256 are in use"):
                table.add(make_provisional(ResourceType.BUFFER, 20_000 + number), ResourceType.BUFFER, None)
            for old, value in live[::2]:
                assert table.get(old) == value
                table.release(old, given_back.append)
                with pytest.raises(NotFoundError):
                    table.get(old)
            live = live[1::2]
    assert len(table) == 2 * len(live)
    table.clear(given_back.append)
    assert sorted(given_back) == list(range(1, 10_001))


def test_h15_ten_thousand_cycles_over_a_link(device, server):
    """The session's table never holds more than what is live: neither side grows."""
    for index in range(10_000):
        buffer = device.allocate(1 << 16)
        if index % 500 == 0:
            device.queue.fill(buffer, b"z").wait(LONG)
        buffer.close()
    device.queue.wait_idle(LONG)
    assert device.statistics().buffers == 0
    assert len(device.host.names) <= 1


def test_h14_what_is_on_its_way_on_another_lane_is_told_from_what_is_gone():
    """Provisional ids of a kind grow: one above the newest that came is still coming, one below will not come any more."""
    table = ResourceTable()
    first, second, third = (make_provisional(ResourceType.COMMAND_BUFFER, number) for number in (3, 5, 8))
    assert table.coming(first)
    table.announce(second, ResourceType.COMMAND_BUFFER)
    assert [table.coming(name) for name in (first, second, third)] == [False, True, True]
    canonical = table.add(second, ResourceType.COMMAND_BUFFER, "thing")
    assert [table.coming(name) for name in (second, canonical, third)] == [False, False, True]
    table.release(second, lambda _: None)
    table.fail(third, NotFoundError("no"))
    assert [table.coming(name) for name in (second, canonical, third)] == [False] * 3
    assert table.coming(make_provisional(ResourceType.BUFFER, 1))
    assert not table.coming(second | 1 << 50)
