"""Invariant 21 of a remote HAL: what a profile's flush and end promise (H24)."""

import threading

import pytest

from remora.errors import Error
from remora.testing.cts.hal_factory import LONG, background


@pytest.mark.parametrize("how", ["flush", "end"])
def test_invariant_21_flush_and_end_answer_only_after_the_sink_took_everything(device, how):
    """Everything that was done before the call is in the sink's hands when it returns, in order, however slow the sink is."""
    records, entered, leave = [], threading.Event(), threading.Event()

    def take(batch):
        entered.set()
        assert leave.wait(LONG)
        records.extend(batch)

    with device.profile(take) as profile:
        points = [device.queue.barrier() for _ in range(500)]
        points[-1].wait(LONG)
        asking = background(lambda: getattr(profile, how)(LONG))
        assert entered.wait(LONG)
        with pytest.raises(TimeoutError):
            asking.result(0.2)
        leave.set()
        asking.result(LONG)
        assert [record.value for record in records] == [point.value for point in points]


@pytest.mark.parametrize("how", ["flush", "end"])
def test_invariant_21_a_sink_that_fails_is_what_they_answer(device, how):
    """The sink's error aborts the profile and no more: the call raises it, the device goes on."""

    def take(_batch):
        raise OSError("the disk is full")

    profile = device.profile(take)
    device.queue.barrier().wait(LONG)
    with pytest.raises((Error, OSError), match="the disk is full"):
        getattr(profile, how)(LONG)
    device.queue.barrier().wait(LONG)
    with device.profile(lambda _: None) as again:
        device.queue.barrier().wait(LONG)
        again.flush(LONG)
