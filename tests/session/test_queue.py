"""Epochs, the window, completion in any order, names and releases (H12, H14, H15)."""

import pytest
from tests.golden import frames
from tests.session.pair import AXIS, OTHER_AXIS, Pair, plain_failure

from remora.base.frontier import MAX_FRONTIER
from remora.base.ids import ResourceType, is_provisional, type_of
from remora.errors import BusyError, DeviceError, OutOfMemoryError, PeerError, UsageError
from remora.session.events import Advanced, AllocateReceived, CommandReceived, Named, ReleaseReceived, ResultReceived, Unnamed
from remora.session.state import Lane
from remora.wire import commands, queue


def feed_client(pair, data):
    return pair.client.receive(Lane.QUEUE, memoryview(data))


def feed_server(pair, data):
    return pair.server.receive(Lane.QUEUE, memoryview(data))


def test_h12_epochs_are_consecutive_on_each_axis():
    pair = Pair.up()
    assert pair.submit(3) == [1, 2, 3]
    assert pair.submit(2, OTHER_AXIS) == [1, 2]
    assert pair.submit(1) == [4]
    assert pair.server.received == 6
    assert [pair.client.submission.submitted(axis) for axis in (AXIS, OTHER_AXIS, 5)] == [4, 2, 0]


def test_h12_a_command_arrives_as_it_was_sent():
    pair = Pair.up()
    pair.submit(2)
    body = commands.encode_range(frames.BUFFER, 0, 16)
    pair.client.command(OTHER_AXIS, commands.READ, ((AXIS, 2),), body)
    expected = CommandReceived(commands.READ, OTHER_AXIS, 1, ((AXIS, 2),), commands.Range(frames.BUFFER, 0, 16))
    assert pair.move_queue(pair.client) == [expected]


def test_h12_completion_in_any_order_is_reported_contiguously():
    pair = Pair.up()
    pair.submit(4)
    assert pair.complete(3) == []
    assert pair.complete(2) == []
    assert pair.complete(1) == [Advanced(AXIS, 3, None)]
    assert pair.complete(4) == [Advanced(AXIS, 4, None)]
    assert pair.client.submission.in_flight == 0


def test_h12_one_advance_answers_many_commands():
    pair = Pair.up()
    for epoch in pair.submit(5):
        pair.server.completion[AXIS].complete(epoch)
    pair.server.advance(AXIS)
    assert pair.server.pending(Lane.QUEUE) == queue.ADVANCE_SIZE
    pair.server.advance(AXIS)
    assert pair.server.pending(Lane.QUEUE) == queue.ADVANCE_SIZE
    assert pair.move_queue(pair.server) == [Advanced(AXIS, 5, None)]


def test_h12_exactly_one_failing_advance_after_the_earlier_successes():
    pair = Pair.up()
    pair.submit(4)
    failure = DeviceError("the kernel returned 7", origin="kernel add")
    assert pair.complete(3, failure) == []
    assert pair.complete(4) == []
    assert pair.complete(1) == [Advanced(AXIS, 1, None)]
    events = pair.complete(2)
    assert [(event.epoch, event.failure and str(event.failure)) for event in events] == [
        (2, None),
        (3, "the kernel returned 7 [kernel add]"),
    ]
    assert type(events[1].failure) is DeviceError
    for _ in range(2):
        pair.server.advance(AXIS)
        assert pair.server.pending(Lane.QUEUE) == 0
    assert pair.complete(4) == []


def test_h12_a_failed_axis_ends_and_the_others_go_on():
    pair = Pair.up(window=4)
    pair.submit(3)
    pair.complete(1, DeviceError("broken"))
    with pytest.raises(DeviceError, match="broken"):
        pair.client.command(AXIS, commands.BARRIER, (), b"")
    assert pair.client.submission.in_flight == 0
    pair.submit(4, OTHER_AXIS)
    assert pair.complete(1, axis=OTHER_AXIS) == [Advanced(OTHER_AXIS, 1, None)]


def test_h12_a_failed_axis_says_so_even_when_the_window_is_full():
    pair = Pair.up(window=2)
    pair.submit(1)
    pair.complete(1, DeviceError("broken"))
    pair.submit(2, OTHER_AXIS)
    with pytest.raises(DeviceError, match="broken"):
        pair.client.command(AXIS, commands.BARRIER, (), b"")


def test_h12_commands_under_way_when_an_axis_fails_fill_no_window():
    pair = Pair.up(window=2)
    pair.submit(1)
    pair.server.completion[AXIS].complete(1, DeviceError("broken"))
    pair.server.advance(AXIS)
    pair.submit(1)
    pair.move_queue(pair.server)
    assert pair.submit(2, OTHER_AXIS) == [1, 2]
    assert pair.server.failure is None


def test_h12_names_still_come_after_the_axis_has_failed():
    pair = Pair.up()
    pair.submit(2)
    resource = pair.client.allocate(0, 8)
    pair.move_queue(pair.client)
    pair.complete(1)
    pair.complete(2, DeviceError("broken"))
    pair.server.advance(AXIS, [(resource, frames.BUFFER)])
    assert pair.move_queue(pair.server) == [Named(resource, frames.BUFFER)]


def test_h12_full_window_is_busy_and_consumes_no_epoch():
    pair = Pair.up(window=3)
    pair.submit(3)
    for axis in (AXIS, OTHER_AXIS):
        with pytest.raises(BusyError, match="3 commands are in flight"):
            pair.client.command(axis, commands.BARRIER, (), b"")
    assert pair.client.pending(Lane.QUEUE) == 0
    pair.complete(1)
    assert pair.submit(1) == [4]


def test_h12_h07_a_client_that_ignores_the_window_is_cut_off():
    pair = Pair.up(window=2)
    pair.client.submission.limit = 100
    for _ in range(3):
        pair.client.command(AXIS, commands.BARRIER, (), b"")
    events = pair.move_queue(pair.client)
    assert len(events) == 3
    assert plain_failure(events) == (PeerError, "3 commands are in flight; the window is 2")


def test_h12_a_refused_command_consumes_no_epoch():
    pair = Pair.up()
    waits = tuple((axis, 1) for axis in range(1, MAX_FRONTIER + 2))
    with pytest.raises(UsageError, match="may wait for 16 axes, this one has 17"):
        pair.client.command(AXIS, commands.BARRIER, waits, b"")
    with pytest.raises(UsageError, match="0x5 is not one of this session's"):
        pair.client.command(5, commands.BARRIER, (), b"")
    assert pair.submit(1) == [1]


@pytest.mark.parametrize(
    ("axis", "epoch", "waits", "op", "message"),
    [
        (AXIS, 2, (), 1, "a COMMAND with epoch 2 on axis 0x102000000000000 after 0"),
        (5, 1, (), 1, "unknown op 1 or axis 0x5"),
        (AXIS, 1, (), 99, "unknown op 99"),
        (AXIS, 1, ((AXIS, 1),), 1, "waits for epoch 1 on axis 0x102000000000000, which was not submitted"),
        (AXIS, 1, ((OTHER_AXIS, 1),), 1, "waits for epoch 1"),
        (AXIS, 1, ((5, 1),), 1, "waits for epoch 1 on axis 0x5"),
    ],
)
def test_h12_commands_that_no_client_sends(axis, epoch, waits, op, message):
    pair = Pair.up()
    error = plain_failure(feed_server(pair, queue.encode_command(op, axis, epoch, waits, b"")))
    assert error[0] is PeerError
    assert message in error[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (queue.encode_advance(AXIS, 3), "epoch 3 on axis 0x102000000000000, which was never submitted"),
        (queue.encode_advance(5, 1), "axis 0x5, which was never submitted"),
        (queue.encode_advance(5, 0, [(frames.NEW_BUFFER, frames.BUFFER)]), "axis 0x5 is not one of this session's"),
        (queue.encode_advance(AXIS, 1, None, DeviceError("x")), "failed after it was done"),
        (queue.encode_result(AXIS, 1, bytearray(8)), "a RESULT for epoch 1 on axis 0x102000000000000, which is not in flight"),
        (queue.encode_result(AXIS, 3, bytearray(8)), "a RESULT for epoch 3"),
        (queue.encode_result(5, 1, bytearray(8)), "a RESULT for epoch 1 on axis 0x5"),
        (queue.encode_advance(AXIS, 0, [(frames.NEW_BUFFER, frames.BUFFER)]), "resolved before, or never asked for"),
        (queue.encode_unnamed(frames.NEW_BUFFER, UsageError("x")), "resolved before, or never asked for"),
    ],
)
def test_h12_h14_answers_that_no_server_sends(data, message):
    pair = Pair.up()
    pair.submit(2)
    pair.complete(1)
    error = plain_failure(feed_client(pair, data))
    assert error[0] is PeerError
    assert message in error[1]


def test_h12_an_axis_fails_once():
    pair = Pair.up()
    pair.submit(3)
    frame = queue.encode_advance(AXIS, 2, None, DeviceError("x"))
    assert len(feed_client(pair, frame)) == 1
    assert "failed twice" in plain_failure(feed_client(pair, frame))[1]


def test_h12_an_older_advance_is_no_error():
    pair = Pair.up()
    pair.submit(3)
    assert feed_client(pair, queue.encode_advance(AXIS, 2)) == [Advanced(AXIS, 2, None)]
    assert feed_client(pair, queue.encode_advance(AXIS, 1) + queue.encode_advance(AXIS, 2)) == []
    assert pair.client.submission.in_flight == 1


@pytest.mark.parametrize("epoch", [0, 2, 3])
def test_completing_what_is_not_open_is_the_callers_fault(epoch):
    pair = Pair.up()
    pair.submit(2)
    window = pair.server.completion[AXIS]
    window.complete(2)
    for failure in (None, DeviceError("x")):
        with pytest.raises(UsageError, match=f"epoch {epoch} completed twice, or before it was received"):
            window.complete(epoch, failure)
    assert window.complete(1)
    with pytest.raises(UsageError, match="completed twice"):
        window.complete(1)
    with pytest.raises(UsageError, match="before it was received"):
        window.complete(3)


def test_h12_read_brings_its_bytes_before_its_advance():
    pair = Pair.up()
    pair.submit(1)
    pair.server.result(AXIS, 1, bytearray(b"hello"))
    pair.server.completion[AXIS].complete(1)
    pair.server.advance(AXIS)
    result, advanced = pair.move_queue(pair.server)
    assert (result[:2], bytes(result.data)) == ((AXIS, 1), b"hello")
    assert type(result) is ResultReceived
    assert advanced == Advanced(AXIS, 1, None)


def test_h14_ids_are_usable_at_once_and_named_by_advance():
    pair = Pair.up()
    resource = pair.client.allocate(3, 4096)
    assert is_provisional(resource)
    assert type_of(resource) is ResourceType.BUFFER
    pair.client.command(AXIS, commands.READ, (), commands.encode_range(resource, 0, 8))
    allocated, command = pair.move_queue(pair.client)
    assert allocated == AllocateReceived(3, resource, 4096)
    assert command.body.buffer == resource
    pair.server.completion[AXIS].complete(1)
    pair.server.advance(AXIS, [(resource, frames.BUFFER)])
    assert pair.move_queue(pair.server) == [Named(resource, frames.BUFFER), Advanced(AXIS, 1, None)]


def test_h14_names_need_no_command():
    pair = Pair.up()
    resource = pair.client.allocate(0, 8)
    pair.move_queue(pair.client)
    pair.server.advance(AXIS, [(resource, frames.BUFFER)])
    assert pair.move_queue(pair.server) == [Named(resource, frames.BUFFER)]


def test_h14_a_resource_that_could_not_be_made():
    pair = Pair.up()
    resource = pair.client.allocate(0, 1 << 60)
    pair.move_queue(pair.client)
    pair.server.unname(resource, OutOfMemoryError("too much"))
    (event,) = pair.move_queue(pair.server)
    assert (type(event), event.provisional, type(event.error)) == (Unnamed, resource, OutOfMemoryError)
    pair.server.unname(resource, OutOfMemoryError("again"))
    assert "resolved before" in plain_failure(pair.move_queue(pair.server))[1]


def test_h14_more_names_than_one_frame_holds():
    pair = Pair.up()
    count = 2 * queue.MAX_NAMES + 1
    made = [pair.client.allocate(0, 8) for _ in range(count)]
    pair.client.command(AXIS, commands.BARRIER, (), b"")
    assert len(pair.move_queue(pair.client)) == count + 1
    pair.server.completion[AXIS].complete(1)
    pair.server.advance(AXIS, [(resource, frames.BUFFER) for resource in made])
    events = pair.move_queue(pair.server)
    assert events == [*(Named(resource, frames.BUFFER) for resource in made), Advanced(AXIS, 1, None)]


def test_h15_releases_are_tied_to_the_commands_before_them():
    pair = Pair.up()
    pair.submit(2)
    pair.client.command(AXIS, commands.BARRIER, (), b"")
    pair.client.release([frames.BUFFER])
    pair.client.command(OTHER_AXIS, commands.BARRIER, (), b"")
    pair.client.release([frames.TARGET, frames.KERNELS])
    events = pair.move_queue(pair.client)
    assert events[1::2] == [ReleaseReceived(3, (frames.BUFFER,)), ReleaseReceived(4, (frames.TARGET, frames.KERNELS))]


def test_h15_releases_are_batched_up_to_the_limit_of_a_frame():
    pair = Pair.up()
    pair.client.release([])
    assert pair.client.pending(Lane.QUEUE) == 0
    ids = list(range(1, queue.MAX_RELEASE + 3))
    pair.client.release(ids)
    first, second = pair.move_queue(pair.client)
    assert first.ids + second.ids == tuple(ids)
    assert len(second.ids) == 2


def test_h15_a_release_cannot_name_commands_that_did_not_come():
    pair = Pair.up()
    pair.submit(2)
    assert "a RELEASE after 3 commands; 2 have come" in plain_failure(feed_server(pair, queue.encode_release(3, [1])))[1]
