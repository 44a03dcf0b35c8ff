"""G04: kernel contracts: extent, alignment, access, constants; aliases; checked when the graph is described."""

import pytest

from remora.errors import UsageError
from remora.graph import BindingContract, KernelContract
from remora.hal.buffer import Access

SOON = 20.0
N = 100


@pytest.fixture
def buffers(runtime):
    return [runtime.allocate(4 * N + 64) for _ in range(3)]


def test_g04_the_manifest_is_the_contract(runtime, vector, buffers):
    graph = runtime.graph()
    a, b, out = buffers
    graph.kernel(vector["add_i32"], [a, b, out], (N,))
    for views, constants, why in [
        ([a, b], (N,), "takes 3 bindings"),
        ([a.view(0, 4 * N - 1), b, out], (N,), r"binding 0 \(a\) needs 400 bytes, got 399"),
        ([a.view(2), b, out], (N,), "multiple of 4"),
        ([a, b, out], (), "constants"),
        ([a, b, out], (1 << 40,), "constants"),
        ([a, b, a], (N,), "bindings 0 and 2 share bytes"),
        ([a, b.view(0, 4 * N), b.view(60)], (N,), "bindings 1 and 2 share bytes"),
    ]:
        with pytest.raises(UsageError, match=why):
            graph.kernel(vector["add_i32"], views, constants)
    assert len(graph) == 1


def test_g04_bindings_that_only_read_may_share(runtime, vector, buffers):
    graph = runtime.graph()
    graph.kernel(vector["add_i32"], [buffers[0], buffers[0], buffers[1]], (N,))
    graph.kernel(vector["add_i32"], [buffers[0].view(4), buffers[0].view(8), buffers[1]], (N,))
    graph.prepare().submit().wait(SOON)


def test_g04_touching_is_no_sharing(runtime, vector):
    both = runtime.allocate(8 * N)
    graph = runtime.graph()
    graph.kernel(vector["add_i32"], [both.view(0, 4 * N), both.view(0, 4 * N), both.view(4 * N)], (N,))


def test_g04_aliasing_is_for_who_asks(runtime, vector, buffers):
    graph = runtime.graph()
    graph.kernel(vector["add_i32"], [buffers[0], buffers[1], buffers[0]], (N,), aliasing=True)
    graph.prepare().submit().wait(SOON)


def test_g04_a_contract_by_hand_asks_for_more(runtime, vector, buffers):
    constants = vector["add_i32"].pack((N,))
    wide = KernelContract(
        (BindingContract(4 * N + 32, Access.READ),) * 2 + (BindingContract(4 * N, Access.WRITE, 64, "rows"),), constants
    )
    graph = runtime.graph()
    a, b, out = buffers
    graph.kernel(vector["add_i32"], [a, b, out], (N,), contract=wide)
    with pytest.raises(UsageError, match="binding 0 needs 432 bytes"):
        graph.kernel(vector["add_i32"], [a.view(0, 4 * N), b, out], (N,), contract=wide)
    with pytest.raises(UsageError, match=r"binding 2 \(rows\) must start at a multiple of 64"):
        graph.kernel(vector["add_i32"], [a, b, out.view(4)], (N,), contract=wide)
    with pytest.raises(UsageError, match="the contract is for the constants"):
        graph.kernel(vector["add_i32"], [a, b, out], (N - 1,), contract=wide)
    with pytest.raises(UsageError, match="takes 1 bindings"):
        graph.kernel(vector["add_i32"], [a, b, out], (N,), contract=KernelContract((BindingContract(4),), constants))


def test_g04_a_contract_that_makes_no_sense_is_refused():
    for fields, why in [
        ((0,), "1 to"),
        ((1 << 63,), "1 to"),
        ((4, Access.READ, 3), "power of two"),
        ((4, Access.READ, 0), "power of two"),
    ]:
        with pytest.raises(UsageError, match=why):
            BindingContract(*fields)
    with pytest.raises(UsageError, match="read, written or both"):
        BindingContract(4, Access.DISCARD)


def test_g04_a_contract_travels_as_json_and_nothing_else_passes():
    contract = KernelContract((BindingContract(64, Access.READ, 16, "bf16"), BindingContract(1, Access.READ_WRITE)), b"\1\2")
    assert KernelContract.from_json(contract.to_json()) == contract
    text = contract.to_json()
    for wrong, why in [
        ("{", "no JSON"),
        ("[]", "exactly the fields"),
        (text.replace("}]", ', "more": 1}]'), "exactly the fields"),
        (text.replace('"read"', '"look"'), "access is one of"),
        (text.replace("64", '"64"'), "bytes is of type int"),
        (text.replace("64", "true"), "bytes is of type int"),
        (text.replace("0102", "xyz"), "bytes in hex"),
        (text.replace("16", "17"), "power of two"),
    ]:
        with pytest.raises(UsageError, match=why):
            KernelContract.from_json(wrong)


def test_r23_constants_have_the_widths_of_the_manifest(runtime, vector):
    """saxpy_f32 takes a count and a float: neither is guessed from the other's size."""
    kernel = vector["saxpy_f32"]
    widths = [rule.type for rule in kernel.info.constants]
    assert len(kernel.pack((1,) * len(widths))) == sum(8 if width.endswith("64") else 4 for width in widths)
    with pytest.raises(UsageError, match="bytes of constants"):
        runtime.graph().kernel(kernel, [runtime.allocate(4) for _ in kernel.info.bindings], b"\0" * 3)


def test_r25_a_grid_that_the_kernel_cannot_have_is_refused_when_it_is_recorded(runtime, vector, buffers):
    for grid in [(1, 1), (-1, 1, 1), (1 << 33, 1, 1), (1.5, 1, 1)]:
        with pytest.raises(UsageError, match="grid"):
            runtime.graph().kernel(vector["add_i32"], buffers, (N,), grid=grid)


def test_g04_a_kernel_of_another_device_is_refused(runtime, buffers):
    import remora
    from remora import samples

    with remora.open("cpu") as other, pytest.raises(UsageError, match="none of this runtime's"):
        runtime.graph().kernel(other.load(samples.load("vector"))["add_i32"], buffers, (N,))
