"""What one artifact has otherwise than its bundle says travels in the manifest and reaches whoever loads it (D11)."""

from __future__ import annotations

import json
import platform

import pytest

import remora
from remora import samples
from remora.errors import NotFoundError, UsageError
from remora.hal.bundle import Bundle
from remora.hal.executable import GridRule, KernelInfo
from remora.hal.manifest import parse_manifest
from remora.hal.target import Target
from remora.hal.variant import KernelVariant

KERNELS = (KernelInfo("one", export="one"), KernelInfo("two", workgroup=(4, 1, 1), grid=GridRule((8, 1, 1)), export="two"))
HERE, THERE = Target("cpu", "x86_64"), Target("cuda", "sm_90")
OTHER = {"two": KernelVariant("two_kernel", (64, 2, 1), GridRule(fixed=(5, 6, 7)))}


def bundle_of(variants):
    return Bundle.from_parts("both", KERNELS, {HERE: b"a", THERE: b"b"}, variants=variants)


def test_d11_a_variant_goes_with_its_artifact_and_no_other():
    again = Bundle.load(bundle_of({THERE: OTHER}).to_bytes())
    assert again.info.kernels == KERNELS
    assert again.info_for(HERE) == again.info
    first, second = again.info_for(THERE).kernels
    assert first == KERNELS[0]
    assert second == KernelInfo("two", (), (), (64, 2, 1), GridRule(fixed=(5, 6, 7)), "two_kernel")
    with pytest.raises(NotFoundError, match="no artifact fits"):
        again.info_for(Target("cuda", "sm_80"))


def test_d11_a_variant_may_change_one_thing():
    second = bundle_of({THERE: {"two": KernelVariant(workgroup=(9, 1, 1))}}).info_for(THERE).kernels[1]
    assert second == KernelInfo("two", (), (), (9, 1, 1), GridRule((8, 1, 1)), "two")


def test_d11_variants_are_content_and_their_absence_costs_no_byte():
    assert bundle_of({THERE: OTHER}).digest != bundle_of({}).digest
    assert bundle_of({}).to_bytes() == bundle_of(None).to_bytes() == bundle_of({THERE: {}}).to_bytes()
    assert b"variants" not in bundle_of(None).to_bytes()


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ([], r"artifacts\[0\].variants must be an object"),
        ({"three": {}}, r"artifacts\[0\].variants.three is unknown; known here: one, two"),
        ({"two": 7}, r"artifacts\[0\].variants.two must be an object"),
        ({"two": {"bindings": []}}, r"variants.two.bindings is unknown; known here: export, workgroup, grid"),
        ({"two": {"workgroup": [0, 1, 1]}}, r"variants.two.workgroup\[0\] must be a whole number from 1"),
        ({"two": {"grid": {"fixed": [1, 2]}}}, r"variants.two.grid.fixed must be a list of 3"),
        ({"two": {"export": ""}}, r"variants.two.export must be a name"),
        ({"two": {"export": None}}, r"variants.two.export must be a name"),
    ],
)
def test_h25_a_broken_variant_is_refused_with_its_place(variants, message):
    artifact = {"target": "cpu:x", "file": "artifacts/cpu/x/both", "bytes": 1, "sha256": "0" * 64, "variants": variants}
    kernels = [{"name": "one"}, {"name": "two"}]
    text = json.dumps({"format": 1, "name": "both", "kernels": kernels, "artifacts": [artifact]})
    with pytest.raises(UsageError, match=message):
        parse_manifest(text.encode())


def test_d11_the_device_takes_the_variant_of_the_artifact_that_it_loads():
    vector = samples.load("vector")
    own = Target("cpu", platform.machine())
    bundle = Bundle.from_parts(
        "own",
        vector.info,
        {own: vector.artifact(own), THERE: b"?"},
        variants={
            own: {"empty": KernelVariant(grid=GridRule(fixed=(3, 1, 1)))},
            THERE: {"empty": KernelVariant(grid=GridRule(fixed=(4, 1, 1)))},
        },
    )
    with remora.open("cpu") as device:
        empty = device.load(bundle)["empty"]
        assert empty.grid_for(1000) == (3, 1, 1)
        with pytest.raises(UsageError, match=r"compiled for the grid \(3, 1, 1\)"):
            device.queue.dispatch(empty, (4, 1, 1), [])
        device.queue.dispatch(empty, (3, 1, 1), []).wait(timeout=30)
