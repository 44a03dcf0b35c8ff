"""D04, D11: launch attributes of kernels travel in the manifest, differ between artifacts, and decide which grids pass."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from importlib import resources
from io import BytesIO

import pytest

import remora
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.bundle import Bundle
from remora.hal.executable import GridRule, KernelInfo
from remora.hal.launch import check_launch
from remora.hal.manifest import parse_manifest
from remora.hal.target import Target
from remora.hal.variant import KernelVariant
from remora.testing.server import ServerProcess

SM80, SM90 = Target("cuda", "sm_80"), Target("cuda", "sm_90")
TILE = KernelInfo("tile", shared_bytes=100 << 10, cluster=(2, 1, 1), grid=GridRule((64, 1, 1)))


def bundle_of(*kernels, **more):
    return Bundle.from_parts("tile", kernels, {"cuda:sm_80": b"80", SM90: b"90"}, **more)


@pytest.mark.parametrize(
    "more", [{}, {"shared_bytes": 1}, {"cluster": (4, 2, 2)}, {"shared_bytes": 1 << 20, "cluster": (1, 1, 16)}]
)
def test_d04_launch_attributes_come_back_as_they_were(more):
    kernel = KernelInfo("k", **more)
    again = Bundle.load(bundle_of(kernel).to_bytes())
    assert again.kernels == (kernel,)
    assert again.info_for(SM80) == again.info


def test_d11_what_is_usual_costs_no_byte():
    plain, same = bundle_of(KernelInfo("k")), bundle_of(KernelInfo("k", shared_bytes=0, cluster=(1, 1, 1)))
    assert plain.to_bytes() == same.to_bytes()
    assert plain.digest != bundle_of(KernelInfo("k", shared_bytes=1)).digest != bundle_of(KernelInfo("k", cluster=(2, 1, 1))).digest


@pytest.mark.parametrize("name", ["vector", "matmul", "special", "faults"])
def test_d11_bundles_from_before_are_the_same_bytes(name):
    """Their manifests have no launch attributes, and get none."""
    whole = resources.files("remora.samples").joinpath(f"{name}.rbundle").read_bytes()
    manifests = [zipfile.ZipFile(BytesIO(each)).read("manifest.json") for each in (whole, Bundle.load(whole).to_bytes())]
    assert manifests[0] == manifests[1]


def test_d04_an_artifact_may_have_its_own():
    less = {"cuda:sm_80": {"tile": KernelVariant(shared_bytes=0, cluster=(1, 1, 1))}}
    again = Bundle.load(bundle_of(TILE, variants=less).to_bytes())
    assert again.info_for(SM80).kernels == (replace(TILE, shared_bytes=0, cluster=(1, 1, 1)),)
    assert again.info_for(SM90).kernels == (TILE,)
    one = Bundle.load(bundle_of(TILE, variants={SM90: {"tile": KernelVariant(shared_bytes=7)}}).to_bytes())
    assert one.info_for(SM90).kernels == (replace(TILE, shared_bytes=7),)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        (b'{"shared_bytes": 1048577}', r"artifacts\[0\].variants.tile.shared_bytes of tile must be .* from 0 to 1048576"),
        (b'{"cluster": [8, 4, 1]}', r"artifacts\[0\].variants.tile.cluster of tile has 32 workgroups, 16 are the most"),
        (b'{"cluster": null}', r"artifacts\[0\].variants.tile.cluster of tile must be a list of 3"),
    ],
)
def test_h25_a_wrong_variant_is_refused_with_its_place(variant, message):
    text = (
        b'{"format": 1, "name": "t", "kernels": [{"name": "tile"}], "artifacts": [{"target": "cpu:x", "file": "artifacts/cpu/x/t",'
        b'"bytes": 1, "sha256": "%s", "variants": {"tile": %s}}]}' % (b"0" * 64, variant)
    )
    with pytest.raises(UsageError, match=message):
        parse_manifest(text)


def test_d11_a_target_may_be_written_out_and_must_be_one():
    assert bundle_of(TILE).targets == (SM80, SM90)
    with pytest.raises(UsageError, match="'sm_90' is no target; write family:key"):
        Bundle.from_parts("tile", [TILE], {"sm_90": b""})
    with pytest.raises(NotFoundError, match="the bundle has cuda:sm_80, cuda:sm_90"):
        bundle_of(TILE).select([Target("cuda", "sm_100")])


@pytest.mark.parametrize("place", ["here", "server"])
def test_d04_a_grid_is_whole_clusters_wherever_the_kernel_runs(place):
    """On the null driver, which runs nothing; a server has the same contract."""
    with ServerProcess(device="null") as server, remora.open("null" if place == "here" else server.uri) as device:
        check_grids(device)


def check_grids(device):
    kernel = replace(TILE, cluster=(2, 4, 1))
    tile = device.load(Bundle.from_parts("tile", [kernel], {device.targets[0]: b"any"}))["tile"]
    assert tile.info == kernel
    assert (tile.grid_for(1), tile.grid_for(129, 5), tile.grid_for(0)) == ((2, 4, 1), (4, 8, 1), (0, 4, 1))
    for grid in ((2, 4, 1), (4, 8, 3), (0, 4, 1)):
        device.queue.dispatch(tile, grid, []).wait(timeout=30)
    for grid in ((1, 4, 1), (2, 6, 1), (3, 4, 1)):
        message = rf"tile runs in clusters of \(2, 4, 1\) workgroups; the grid \({grid[0]}, {grid[1]}, 1\) is no multiple of that"
        with pytest.raises(UsageError, match=message):
            device.queue.dispatch(tile, grid, [])
        with device.command_buffer() as commands, pytest.raises(UsageError, match=message):
            commands.dispatch(tile, grid, [])


def test_d04_a_driver_refuses_what_it_does_not_give():
    check_launch(KernelInfo("k"), "x", shared=False)
    check_launch(KernelInfo("k", shared_bytes=8), "x", shared=True)
    with pytest.raises(UnsupportedError, match="k asks for 8 bytes of dynamic shared memory, which the x driver does not have"):
        check_launch(KernelInfo("k", shared_bytes=8), "x", shared=False)
    with pytest.raises(UnsupportedError, match=r"k runs in clusters of \(1, 1, 2\) workgroups, which the x driver does not have"):
        check_launch(KernelInfo("k", cluster=(1, 1, 2)), "x", shared=True)
