"""Ids and axes (H14): every field comes back, no field leaks into another, bounds hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.base import ids
from remora.base.ids import AxisDomain, ResourceType
from remora.errors import UsageError

kinds = st.sampled_from(ResourceType)
bytes_ = st.integers(0, 0xFF)


@given(kinds, st.integers(0, ids.MAX_GENERATION), st.integers(0, ids.MAX_SLOT), bytes_)
def test_h14_canonical_id_round_trip(kind, generation, slot, placement):
    made = ids.make_id(kind, generation, slot, placement)
    assert 0 <= made < 1 << 64
    assert ids.split_id(made) == (kind, generation, placement, slot)
    assert ids.type_of(made) is kind
    assert not ids.is_provisional(made)
    assert ids.describe_id(made) == f"{kind.name.lower()} {slot}.{generation}"


@given(kinds, st.integers(1, ids.MAX_COUNTER))
def test_h14_provisional_id_round_trip(kind, counter):
    made = ids.make_provisional(kind, counter)
    assert 0 <= made < 1 << 64
    assert ids.is_provisional(made)
    assert ids.type_of(made) is kind
    assert made & ids.MAX_COUNTER == counter
    assert ids.describe_id(made) == f"{kind.name.lower()} new-{counter}"


def test_h14_ids_are_laid_out_as_drawn():
    canonical = ids.make_id(ResourceType.EXECUTABLE, generation=0x1234, slot=0x56789A, placement=0xBC)
    assert canonical == 0x03_00_1234_BC_56789A
    assert ids.split_id(canonical) == (ResourceType.EXECUTABLE, 0x1234, 0xBC, 0x56789A)
    assert ids.describe_id(canonical) == f"executable {0x56789A}.{0x1234}"
    provisional = ids.make_provisional(ResourceType.BUFFER, 7)
    assert provisional == 0x01_80_000000000007
    assert ids.is_provisional(provisional)
    assert ids.describe_id(provisional) == "buffer new-7"
    axis = ids.make_axis(1, 2, AxisDomain.HOST, device=3, queue=4, incarnation=5)
    assert axis == 0x01_02_03_03_04_000005
    assert ids.split_axis(axis) == (1, 2, AxisDomain.HOST, 3, 4)


@given(st.lists(st.tuples(kinds, bytes_, st.integers(0, 9), st.integers(0, 9)), unique=True))
def test_h14_different_fields_give_different_ids(fields):
    made = {ids.make_id(kind, generation, slot, placement) for kind, placement, generation, slot in fields}
    assert len(made) == len(fields)


@pytest.mark.parametrize(
    ("generation", "slot", "placement"),
    [(-1, 0, 0), (ids.MAX_GENERATION + 1, 0, 0), (0, -1, 0), (0, ids.MAX_SLOT + 1, 0), (0, 0, -1), (0, 0, 256)],
)
def test_h14_a_field_that_does_not_fit_is_refused(generation, slot, placement):
    with pytest.raises(UsageError, match="out of range"):
        ids.make_id(ResourceType.BUFFER, generation, slot, placement)


@pytest.mark.parametrize("counter", [0, -1, ids.MAX_COUNTER + 1])
def test_h14_provisional_counters_start_at_one_and_end(counter):
    with pytest.raises(UsageError, match="counter"):
        ids.make_provisional(ResourceType.BUFFER, counter)


@pytest.mark.parametrize("bit", range(48, 55))
def test_h14_reserved_bits_are_refused(bit):
    bad = ids.make_id(ResourceType.BUFFER, 1, 2) | 1 << bit
    with pytest.raises(UsageError, match="reserved"):
        ids.type_of(bad)
    assert ids.describe_id(bad) == f"id {bad:#x}"


@pytest.mark.parametrize("kind", [0, 8, 255])
def test_h14_unknown_types_are_refused(kind):
    with pytest.raises(UsageError, match="no known resource type"):
        ids.type_of(kind << 56)


@given(bytes_, bytes_, st.sampled_from(AxisDomain), bytes_, bytes_, st.integers(0, 0xFFFFFF))
def test_h12_axis_round_trip(epoch, machine, domain, device, queue, incarnation):
    axis = ids.make_axis(epoch, machine, domain, device, queue, incarnation)
    assert 0 <= axis < 1 << 64
    assert ids.split_axis(axis) == (epoch, machine, domain, device, queue)
    assert axis & 0xFFFFFF == incarnation


@pytest.mark.parametrize("fields", [(256, 0), (-1, 0), (0, 256), (0, 0, AxisDomain.QUEUE, 256), (0, 0, AxisDomain.QUEUE, 0, 256)])
def test_h12_axis_fields_are_bounded(fields):
    with pytest.raises(UsageError, match="axis field"):
        ids.make_axis(*fields)


@pytest.mark.parametrize("incarnation", [-1, 1 << 24])
def test_h12_axis_incarnation_is_bounded(incarnation):
    with pytest.raises(UsageError, match="axis field"):
        ids.make_axis(0, 0, incarnation=incarnation)


def test_h12_unknown_axis_domain_is_refused():
    with pytest.raises(UsageError, match="unknown domain"):
        ids.split_axis(9 << 40)
