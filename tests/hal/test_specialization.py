"""H19: specialization constants: what is declared, given and packed."""

import json
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import NotFoundError, Status, UsageError
from remora.hal.bundle import Bundle
from remora.hal.executable import KernelInfo
from remora.hal.manifest import encode_info, parse_info
from remora.hal.specialization import CONSTANT_CODES, ExecutableInfo, GlobalRule, SpecializationRule, specialize, values_of
from remora.hal.target import Target

KERNELS = (KernelInfo("k"),)
RANGES = {
    "u32": (0, (1 << 32) - 1),
    "i32": (-(1 << 31), (1 << 31) - 1),
    "u64": (0, (1 << 64) - 1),
    "i64": (-(1 << 63), (1 << 63) - 1),
}
numbers = {
    **{kind: st.integers(*bounds) for kind, bounds in RANGES.items()},
    "f32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "f64": st.floats(allow_nan=False, allow_infinity=False),
}


@st.composite
def declared(draw):
    """(rules in any order that cover the table, values for some of them)"""
    rules, values, ordinal = [], {}, 0
    for number in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(list(CONSTANT_CODES)))
        default = draw(st.none() | numbers[kind])
        rules.append(SpecializationRule(f"c{number}", kind, ordinal, default))
        if default is None or draw(st.booleans()):
            values[f"c{number}"] = draw(numbers[kind])
        ordinal += rules[-1].words
    return draw(st.permutations(rules)), values


@given(declared())
def test_h19_every_constant_is_where_its_ordinal_says(case):
    rules, values = case
    words = specialize(rules, values)
    expected = b"".join(
        struct.pack("<" + CONSTANT_CODES[rule.type], values.get(rule.name, rule.default))
        for rule in sorted(rules, key=lambda rule: rule.ordinal)
    )
    assert struct.pack(f"<{len(words)}I", *words) == expected
    assert specialize(rules, expected) == words
    assert values_of(rules, words) == {rule.name: values.get(rule.name, rule.default) for rule in rules}
    info = ExecutableInfo(KERNELS, tuple(rules))
    assert info.words == len(words)
    assert parse_info(encode_info(info)) == info


def test_h19_bytes_have_to_be_the_whole_table():
    rules = [SpecializationRule("a", "u64")]
    for size in (0, 4, 7, 12):
        with pytest.raises(UsageError, match=f"takes 8 bytes of specialization constants, got {size}"):
            specialize(rules, bytes(size))
    with pytest.raises(UsageError, match="takes 0 bytes"):
        specialize([], bytes(4))


def test_h19_what_is_wrong_with_a_value_is_said():
    rules = [SpecializationRule("N", "i32")]
    with pytest.raises(NotFoundError, match="no specialization constant 'M'; the code has: N: i32"):
        specialize(rules, {"M": 1})
    with pytest.raises(UsageError, match="N is i32; 2147483648 does not fit") as caught:
        specialize(rules, {"N": 1 << 31})
    assert caught.value.code is Status.OUT_OF_RANGE
    with pytest.raises(UsageError, match=r"N \(i32\) has no default"):
        specialize(rules, {})


def test_d11_a_bundle_keeps_constants_and_globals():
    info = ExecutableInfo(
        KERNELS,
        (SpecializationRule("N", "f32", 0, 1.5), SpecializationRule("M", "u64", 1)),
        (GlobalRule("g", 8), GlobalRule("h", 1, "x")),
    )
    bundle = Bundle.load(Bundle.from_parts("b", info, {Target("cpu", "x"): b"code"}).to_bytes())
    assert bundle.info == info
    assert bundle.kernels == KERNELS
    plain = Bundle.from_parts("b", KERNELS, {Target("cpu", "x"): b"code"})
    assert plain.info == ExecutableInfo(KERNELS)
    assert plain.digest != bundle.digest


def test_d11_an_ordinal_follows_the_one_before():
    told = {"kernels": [{"name": "k"}], "constants": [{"name": "a", "type": "u64"}, {"name": "b"}, {"name": "c", "type": "f32"}]}
    rules = parse_info(json.dumps(told).encode()).constants
    assert [(rule.ordinal, rule.type) for rule in rules] == [(0, "u64"), (2, "u32"), (3, "f32")]


RULE = {"name": "N", "type": "u32", "ordinal": 0, "default": 1}
WRONG = [
    ("constants", {"name": ""}, r"constants\[0\].name must be a name"),
    ("constants", {"type": "u8"}, r"constants\[0\].type must be one of u32, i32, f32"),
    ("constants", {"ordinal": -1}, r"constants\[0\].ordinal must be a whole number"),
    ("constants", {"ordinal": 1}, r"constants: N begins at word 1, it has to be 0"),
    ("constants", {"ordinal": 1024}, r"constants\[0\].ordinal must be a whole number from 0 to 1023"),
    ("constants", {"default": -1}, r"constants\[0\].default must be a number of type u32, not -1"),
    ("constants", {"default": 1.0}, r"constants\[0\].default must be a number of type u32"),
    ("constants", {"default": True}, r"constants\[0\].default must be a number of type u32"),
    ("constants", {"type": "f32", "default": 1e39}, r"constants\[0\].default must be a number of type f32"),
    ("constants", {"type": "f64", "default": 10**400}, r"constants\[0\].default must be a number of type f64"),
    ("constants", {"step": 1}, r"constants\[0\].step is unknown"),
    ("globals", {"name": 5}, r"globals\[0\].name must be a name"),
    ("globals", {"size": 0}, r"globals\[0\].size must be a whole number from 1"),
    ("globals", {"size": 1 << 33}, r"globals\[0\].size must be a whole number"),
    ("globals", {"export": "\0"}, r"globals\[0\].export must be a name"),
    ("globals", {"type": "u32"}, r"globals\[0\].type is unknown"),
]


@pytest.mark.parametrize(("where", "change", "message"), WRONG)
def test_h25_a_wrong_declaration_is_refused_with_the_place(where, change, message):
    told = {"kernels": [{"name": "k"}], "constants": [RULE], "globals": [{"name": "g", "size": 8}]}
    parse_info(json.dumps(told).encode())
    told[where] = [told[where][0] | change]
    with pytest.raises(UsageError, match=message):
        parse_info(json.dumps(told).encode())


@pytest.mark.parametrize(
    ("ordinals", "message"), [((0, 0), "has to be 1"), ((0, 2), "has to be 1"), ((1, 0), None), ((1, 1), "has to be 0")]
)
def test_h25_the_table_has_no_gaps_and_no_overlaps(ordinals, message):
    rules = tuple(SpecializationRule(f"c{number}", ordinal=ordinal) for number, ordinal in enumerate(ordinals))
    data = encode_info(ExecutableInfo(KERNELS, rules))
    if message is None:
        assert parse_info(data).constants == rules
    else:
        with pytest.raises(UsageError, match=message):
            parse_info(data)


def test_h25_a_name_twice_is_refused():
    info = ExecutableInfo(KERNELS, (SpecializationRule("N"), SpecializationRule("N", ordinal=1)))
    with pytest.raises(UsageError, match=r"constants\[1\]: N is there already"):
        parse_info(encode_info(info))
    with pytest.raises(UsageError, match=r"globals\[1\]: g is there already"):
        parse_info(encode_info(replace(info, constants=(), globals=(GlobalRule("g", 1), GlobalRule("g", 2)))))
