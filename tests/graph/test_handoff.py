"""G10: other code on buffers inside the order of work, fenced on every way out; callbacks in graphs; native sessions."""

import ctypes
import threading

import pytest
from tests.graph.graphs import SOON, filling

from remora.errors import BusyError, DeadlineError, DeviceError, DeviceLostError, UsageError
from remora.graph import DEVICE, HOST_VISIBLE, LaneName, NativeSession, Runtime
from remora.hal.buffer import Access


@pytest.mark.parametrize("placement", [DEVICE, HOST_VISIBLE], ids=str)
def test_g10_numpy_and_ctypes_work_on_device_buffers(runtime, placement):
    numpy = pytest.importorskip("numpy", reason="needs NumPy: pip install numpy")
    a, b = runtime.allocate(64, placement), runtime.allocate(64, placement)
    filling(runtime, a, 3).submit()
    with runtime.handoff((a, Access.READ), (b, Access.WRITE)) as given, given.memory(0) as left, given.memory(1) as right:
        assert left.readonly
        numpy.add(numpy.frombuffer(left, "u1"), 1, out=numpy.frombuffer(right, "u1"))
        ctypes.memset((ctypes.c_char * 4).from_buffer(right), 9, 4)
    seen = []
    graph = runtime.graph()
    graph.call(lambda memory: seen.append(bytes(memory)), [(b, Access.READ)])
    graph.prepare().submit().wait(SOON)
    assert seen == [b"\x09" * 4 + b"\x04" * 60]


def test_g10_the_hals_own_views_are_there_for_code_that_knows_the_device(runtime):
    a = runtime.allocate(64)
    with runtime.handoff((a.view(16, 16), Access.WRITE)) as given:
        queue = runtime.device().queue
        queue.fill(given.views[0], b"\5")
    result = bytearray(64)
    graph = runtime.graph()
    graph.download(a, result)
    graph.prepare().submit().wait(SOON)
    assert bytes(result) == bytes(16) + b"\5" * 16 + bytes(32)
    with pytest.raises(UsageError, match="inside the handoff"):
        given.memory(0)
    with pytest.raises(UsageError, match="entered once"):
        given.__enter__()


def test_g10_a_handoff_excludes_guards_submissions_and_other_handoffs(runtime):
    a, other = runtime.allocate(64, HOST_VISIBLE), runtime.allocate(64, HOST_VISIBLE)
    graph = filling(runtime, a)
    with runtime.handoff((a.view(0, 4), Access.READ)):
        for attempt in (a.read, a.write, a.try_read, runtime.handoff((a, Access.READ)).__enter__):
            with pytest.raises(BusyError):
                attempt()
        with pytest.raises(BusyError, match="handed over"):
            graph.submit()
        filling(runtime, other).submit().wait(SOON)
    graph.submit().wait(SOON)
    with a.read(), pytest.raises(BusyError, match="mapped"):
        runtime.handoff((a, Access.READ)).__enter__()


def test_g10_it_waits_for_pending_work_and_no_longer_than_told(domain, stepped):
    runtime = domain()
    a = runtime.allocate(64, HOST_VISIBLE)
    stepped.run()
    done = filling(runtime, a).submit()
    with pytest.raises(DeadlineError, match="in the time given"):
        runtime.handoff((a, Access.READ), timeout=0.01).__enter__()
    stepped.run()
    with runtime.handoff((a, Access.READ), fence=lambda: None):
        assert done.done


def test_i15_the_fence_runs_on_every_way_out_and_an_error_poisons_nothing(runtime):
    a, fences = runtime.allocate(64, HOST_VISIBLE), []
    with runtime.handoff((a, Access.WRITE), fence=lambda: fences.append(1)):
        pass
    with pytest.raises(ZeroDivisionError), runtime.handoff((a, Access.WRITE), fence=lambda: fences.append(2)):
        assert 1 // 0
    assert fences == [1, 2]
    a.write().close()


def test_g10_a_fence_that_fails_loses_the_buffers(runtime):
    a, b = runtime.allocate(64, HOST_VISIBLE), runtime.allocate(64, HOST_VISIBLE)
    lost = runtime.handoff((a, Access.READ), (b.view(4), Access.READ), fence=lambda: 1 // 0)
    with pytest.raises(DeviceLostError, match=r"fence of a handoff failed.*ZeroDivisionError"), lost:
        pass
    for buffer in (a, b):
        with pytest.raises(DeviceLostError, match="contents are unknown"):
            buffer.read()


def test_g10_a_failed_entry_leaves_nothing_reserved(runtime):
    a, b = runtime.allocate(64, HOST_VISIBLE), runtime.allocate(64, HOST_VISIBLE)
    with b.read():
        with pytest.raises(BusyError):
            runtime.handoff((a, Access.READ), (b, Access.READ)).__enter__()
        a.write().close()


def test_g10_callbacks_get_the_hals_views_when_they_ask(runtime):
    a, seen = runtime.allocate(64), []
    graph = runtime.graph()
    graph.call(lambda view: seen.append((view.offset, view.size, view.buffer.device)), [(a.view(8, 16), Access.READ)], mapped=False)
    graph.prepare().submit().wait(SOON)
    assert seen == [(8, 16, runtime.device())]


# -- native sessions --------------------------------------------------------------------------------------------------------------


def test_g10_a_stage_runs_after_what_came_before_and_before_later_compute(domain, stepped):
    runtime = domain()
    a, b, c = (runtime.allocate(16) for _ in range(3))
    stepped.run()
    early = filling(runtime, a).submit()
    up = runtime.graph()
    up.upload(c, bytes(16))
    upload = up.prepare()
    order, fenced = [], []
    session = NativeSession(runtime, "state", fenced.append)
    stage = threading.Thread(target=lambda: order.append(session.run(lambda state: order.append(state) or "result", timeout=SOON)))
    stage.start()
    lane = runtime.scheduler.lanes[LaneName.COMPUTE]
    with runtime.scheduler.lock:
        while not lane.held:
            runtime.scheduler.sleep(0.01)
    late = filling(runtime, b).submit()
    beside = upload.submit()
    stepped.step(LaneName.UPLOAD)
    assert beside.done  # another lane goes on
    assert order == []
    stepped.step(LaneName.COMPUTE)
    assert early.done
    stage.join(SOON)
    assert order == ["state", "result"]
    assert fenced == ["state"]
    stepped.step(LaneName.COMPUTE)
    assert late.done


def test_g10_stages_that_raise_are_fenced_and_the_session_goes_on(runtime):
    fenced = []
    session = NativeSession(runtime, [], fenced.append)
    with pytest.raises(ZeroDivisionError):
        session.run(lambda state: 1 // 0)
    with pytest.raises(DeviceError, match="its own"):
        session.run(lambda state: (_ for _ in ()).throw(DeviceError("its own")))
    assert session.run(lambda state: state.append(1) or 5) == 5
    assert len(fenced) == 3
    assert runtime.statistics().submissions == 3
    filling(runtime, runtime.allocate(16)).submit().wait(SOON)


def test_g10_a_stage_inside_a_stage_is_busy_and_no_deadlock(runtime, device):
    session = NativeSession(runtime, None, lambda state: None)
    with pytest.raises(BusyError, match="cannot begin another"):
        session.run(lambda state: session.run(lambda state: None))
    with Runtime(device) as other:
        beside = NativeSession(other, None, lambda state: None)
        assert session.run(lambda state: beside.run(lambda state: 7)) == 7


def test_g10_a_fence_that_fails_ends_the_session_and_frees_the_lane(runtime):
    session = NativeSession(runtime, object(), lambda state: 1 // 0)
    with pytest.raises(DeviceLostError, match="its state is lost"):
        session.run(lambda state: None)
    with pytest.raises(DeviceLostError, match="its state is lost"):
        session.run(lambda state: None)
    filling(runtime, runtime.allocate(16)).submit().wait(SOON)


def test_i12_a_stage_that_may_not_wait_longer_leaves_the_lane(domain, stepped):
    runtime = domain(max_submissions=3)
    a = runtime.allocate(16)
    early = filling(runtime, a).submit()
    session = NativeSession(runtime, None, lambda state: None)
    blocker, event = runtime.graph(), threading.Event()
    blocker.call(lambda memory: event.wait(SOON), [(a, Access.READ)])
    held = blocker.prepare().submit()
    with pytest.raises(DeadlineError, match="in the time given"):
        session.run(lambda state: None, timeout=0.01)
    later = filling(runtime, runtime.allocate(16)).submit()
    stepped.run()
    event.set()
    for each in (early, held):
        each.wait(SOON)
    stepped.run()
    later.wait(SOON)
