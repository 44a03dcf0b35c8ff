"""Targets (H19): parsing, and the choice between what a device takes and what a bundle has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import NotFoundError, UsageError
from remora.hal.target import Target, choose_target, parse_target

targets = st.builds(Target, st.sampled_from(["cpu", "cuda"]), st.sampled_from(["a", "b", "c"]))


@pytest.mark.parametrize("text", ["cpu:x86_64-v3", "vulkan:spirv1.3+bda", "opencl:c1.2", "cuda:sm_90"])
def test_h19_a_target_prints_as_it_is_written(text):
    assert str(parse_target(text)) == text


@pytest.mark.parametrize("text", ["", "cpu", "cpu:", ":x86_64", ":"])
def test_h19_other_text_is_no_target(text):
    with pytest.raises(UsageError, match="write family:key, such as cpu:x86_64-v3"):
        parse_target(text)


@given(st.lists(targets, max_size=5), st.sets(targets, max_size=5))
def test_h19_the_first_that_both_have(advertised, available):
    common = [target for target in advertised if target in available]
    if common:
        assert choose_target(advertised, available) == common[0]
    else:
        with pytest.raises(NotFoundError) as caught:
            choose_target(advertised, available)
        assert all(str(target) in caught.value.message for target in (*advertised, *available))


def test_h19_nothing_on_a_side_is_said():
    with pytest.raises(NotFoundError, match="it takes nothing; the bundle has nothing"):
        choose_target([], [])
