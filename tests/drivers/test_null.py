"""The null driver: everything but the kernels is real (D06)."""

import pytest

from remora.errors import ClosedError, NotFoundError, OutOfMemoryError, UsageError
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, ConstantRule, KernelInfo
from remora.hal.registry import open_devices
from remora.hal.target import Target

ADD = KernelInfo("add", (BindingRule("a", bytes=8), BindingRule("b", bytes=8)), (ConstantRule("n"),))


@pytest.fixture
def null():
    (device,) = open_devices("null")
    with device:
        yield device


def test_d06_memory_moves_for_real(null):
    source = null.upload(b"abcdefgh")
    target = null.allocate(8)
    null.queue.fill(target, b"\x01\x02")
    null.queue.copy(source.view(2, 4), target.view(4))
    null.queue.update(target, b"!", 1)
    assert bytes(target.read(timeout=5)) == b"\x01!\x01\x02cdef"


def test_d06_any_artifact_is_taken_and_kernels_do_nothing(null):
    add = null.load_artifact(Target("null", "any"), b"whatever", [ADD])["add"]
    buffer = null.upload(bytes(8))
    null.queue.dispatch(add, (3, 1, 1), [buffer, buffer], (7,)).wait(5)
    assert bytes(buffer.read()) == bytes(8)
    assert null.statistics().dispatches == 1


def test_d06_contracts_are_checked(null):
    add = null.load_artifact(Target("null", "any"), b"", [ADD])["add"]
    buffer = null.allocate(8)
    with pytest.raises(UsageError, match="takes 2 bindings"):
        null.queue.dispatch(add, (1, 1, 1), [buffer], (7,))
    with pytest.raises(UsageError, match=r"binding 1 \(b\) needs 8 bytes, got 4"):
        null.queue.dispatch(add, (1, 1, 1), [buffer, buffer.view(0, 4)], (7,))
    with pytest.raises(UsageError, match="does not take cpu:x86_64"):
        null.load_artifact(Target("cpu", "x86_64"), b"", [ADD])


def test_d06_closed_things_say_so(null):
    executable = null.load_artifact(Target("null", "any"), b"", [KernelInfo("empty")])
    empty = executable["empty"]
    executable.close()
    executable.close()
    with pytest.raises(ClosedError, match="load it again"):
        null.queue.dispatch(empty, (1, 1, 1), [])
    null.close()
    null.close()
    with pytest.raises(ClosedError, match="open it again"):
        null.allocate(1)


def test_d06_mappings_are_the_memory(null):
    buffer = null.upload(b"abcd")
    with buffer.map(Access.READ_WRITE, 1, 2) as mapping:
        mapping.view[0] = ord("X")
    assert bytes(buffer.read()) == b"aXcd"


def test_d06_statistics_count_what_is_live(null):
    first = null.allocate(100)
    second = null.allocate(50)
    first.close()
    first.close()
    statistics = null.statistics()
    assert (statistics.buffers, statistics.bytes_allocated, statistics.bytes_peak) == (1, 50, 150)
    second.close()


def test_d06_memory_runs_out_with_numbers(null):
    (heap,) = null.info.heaps
    held = [null.allocate(heap.max_allocation) for _ in range(heap.size // heap.max_allocation)]
    with pytest.raises(OutOfMemoryError, match=f"asked for 1 bytes, 0 of {heap.size:,} are free"):
        null.allocate(1)
    held.pop().close()
    null.allocate(1).close()


@pytest.mark.parametrize("uri", ["null://here", "null://?threads=1"])
def test_options_it_has_not_are_refused(uri):
    with pytest.raises(UsageError, match="write null://"):
        open_devices(uri)


def test_an_unknown_scheme_lists_the_drivers():
    with pytest.raises(NotFoundError, match=r"known: cpu, .*null, "):
        open_devices("quantum")
