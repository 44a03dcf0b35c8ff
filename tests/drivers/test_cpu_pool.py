"""The worker pool: every workgroup runs exactly once, on as many threads as there are, and no wake-up is lost (D01, H27)."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.drivers.cpu import _ffi
from remora.errors import BusyError, DeviceError, UsageError
from remora.hal.registry import open_devices

THREADS = (1, 2, 3, 8)


@pytest.fixture(scope="module")
def pools(plain, infos):
    """threads -> (device, kernels)."""
    opened = {}
    for threads in THREADS:
        (device,) = open_devices(f"cpu://?threads={threads}")
        opened[threads] = device, device.load_artifact(device.targets[-1], plain, infos)
    yield opened
    for device, _ in opened.values():
        device.close()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(THREADS), st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 5)))
def test_d01_every_workgroup_runs_exactly_once(pools, threads, grid):
    device, kernels = pools[threads]
    x, y, z = grid
    with device.upload(bytes(4 * x * y * z)) as cells:
        device.queue.dispatch(kernels["mark"], grid, [cells]).wait(10)
        assert cells.read().cast("I").tolist() == [1] * (x * y * z)


@pytest.mark.parametrize("threads", THREADS)
def test_h27_no_wake_up_is_lost(pools, threads):
    """Many short dispatches from several queues at once: a lost wake-up would hang one, a lost or doubled workgroup miscount."""
    device, kernels = pools[threads]
    rounds, workgroups = 400, 37

    def submit(queue):
        with device.upload(bytes(4 * workgroups)) as cells:
            for _ in range(rounds):
                kernels[
                    "mark"
                ].program.record.ns_per_workgroup = 1000.0  # short enough to run here, long enough to wake the workers
                done = queue.dispatch(kernels["mark"], (workgroups, 1, 1), [cells])
            done.wait(30)
            return cells.read().cast("I").tolist()

    with ThreadPoolExecutor(4) as executor:
        for counts in executor.map(submit, device.queues):
            assert counts == [rounds] * workgroups


def test_d01_queues_run_beside_each_other(cpu, kernels):
    """One queue's kernel does not end before another queue's kernel has run."""
    words = cpu.upload(bytes(12))
    gated = cpu.queues[1].dispatch(kernels["gate"], (1, 1, 1), [words])
    cells = cpu.upload(bytes(400))
    cpu.queues[2].dispatch(kernels["mark"], (100, 1, 1), [cells]).wait(10)
    assert not gated.done
    with words.map() as mapping:
        mapping.view[0] = 1
    gated.wait(10)
    assert cells.read().cast("I").tolist() == [1] * 100


def test_d01_a_kernel_leaves_the_gil(cpu, kernels):
    """A Python thread goes on while a kernel runs on the worker; the kernel ends only because it does."""
    words = cpu.upload(bytes(12))
    gated = cpu.queues[3].dispatch(kernels["gate"], (1, 1, 1), [words])
    released = threading.Event()

    def release():
        with words.map() as mapping:
            mapping.view[0] = 1
        released.set()

    threading.Thread(target=release).start()
    gated.wait(10)
    assert released.wait(10)
    assert words.read(4, 4).cast("I")[0] == 1


@pytest.mark.parametrize("threads", THREADS)
def test_the_first_failure_ends_a_dispatch(threads, plain, infos):
    (device,) = open_devices(f"cpu://?threads={threads}")
    with device:
        fail = device.load_artifact(device.targets[-1], plain, infos)["fail"]
        calls = device.upload(bytes(4))
        total = 1 << 20
        with pytest.raises(DeviceError, match="kernel fail failed: a workgroup returned 7"):
            device.queues[1].dispatch(fail, (total, 1, 1), [calls], (0, 7)).wait(10)
        assert 1 <= calls.read().cast("I")[0] < total


def test_negative_codes_are_failures_too(cpu, kernels):
    with pytest.raises(DeviceError, match="returned -3"):
        cpu.queues[1].dispatch(kernels["fail"], (4, 1, 1), [cpu.upload(bytes(4))], (3, -3)).wait(10)


@pytest.mark.parametrize("threads", THREADS)
def test_local_memory_is_each_workgroups_own(pools, threads):
    device, kernels = pools[threads]
    out = device.upload(bytes(4 * 64))
    for _ in range(5):
        device.queue.dispatch(kernels["scratch"], (64, 1, 1), [out]).wait(10)
        assert out.read().cast("I").tolist() == [index * 2048 for index in range(64)]


def test_no_local_memory_is_an_error(cpu, kernels):
    program = kernels["scratch"].program
    program.record.local_memory_bytes = 0
    with pytest.raises(DeviceError, match="returned 9"):
        cpu.queues[1].dispatch(kernels["scratch"], (1, 1, 1), [cpu.allocate(4)]).wait(10)


def test_what_a_kernel_sees(cpu, kernels):
    out = cpu.upload(bytes(64))
    cpu.queue.dispatch(kernels["report"], (1, 1, 1), [out]).wait(10)
    assert out.read().cast("Q").tolist()[:7] == [1, 1, 1, 8, 0, 1, 2]
    assert out.read().cast("Q")[7] == cpu.environment.processor[0]


def test_absurd_grids_are_refused(cpu, kernels):
    with pytest.raises(UsageError, match="workgroups are more than 2"):
        cpu.queue.dispatch(kernels["empty"], ((1 << 32) - 1, (1 << 32) - 1, 9), [])


def test_the_cost_of_a_kernel_is_learned(cpu, kernels):
    """The first dispatch goes to the worker; a short kernel then runs on the submitting thread, done when the call returns."""
    empty = kernels["empty"]
    assert empty.program.record.ns_per_workgroup < 0
    cpu.queue.dispatch(empty, (1, 1, 1), []).wait(10)
    assert empty.program.record.ns_per_workgroup >= 0
    empty.program.record.ns_per_workgroup = 100.0
    cpu.queue.wait_idle(10)
    inline = cpu.queues[1]
    assert inline.dispatch(empty, (1, 1, 1), []).done
    assert inline._worker is None


def test_a_kernel_that_became_long_is_noticed_at_the_second_time(cpu, kernels):
    """One outlier may be a thread that lost its core; two in a row are the kernel."""
    record = kernels["mark"].program.record
    cells = cpu.upload(bytes(4 << 20))
    record.ns_per_workgroup = 0.001
    for known in (True, False):
        cpu.queue.dispatch(kernels["mark"], (1 << 20, 1, 1), [cells]).wait(10)
        assert (record.ns_per_workgroup == 0.001) is known
    assert record.ns_per_workgroup > 0.01


def test_threads_that_the_system_refuses_are_told(monkeypatch):
    functions = _ffi.load_pool()
    monkeypatch.setattr(_ffi, "load_pool", lambda: functions._replace(create=lambda threads: None))
    with pytest.raises(BusyError, match=r"no room for 2 threads: open cpu://\?threads=1"):
        open_devices("cpu://?threads=2")


def test_the_record_in_python_is_the_one_in_c(cpu, kernels):
    """A field out of place would break this dispatch of a kernel that uses constants, bindings and several workgroups."""
    add = kernels["add"]
    a, b, out = (cpu.upload(bytes([value, 0, 0, 0]) * 5000) for value in (3, 4, 0))
    cpu.queue.dispatch(add, add.grid_for(5000), [a, b, out], (5000,)).wait(10)
    assert out.read().cast("I").tolist() == [7] * 5000
