"""D03, H25: what is read from a SPIR-V module, and that nothing but a clear error comes of a broken one."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.drivers.vulkan.spirv import Owned, parse_module
from remora.errors import UnsupportedError, UsageError

FOLDER = Path(__file__).parents[2] / "kernels/spirv"
MODULES = {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.spv"))}
HEAD = struct.pack("<5I", 0x07230203, 0x00010300, 0, 100, 0)


def module(*instructions):
    """A module of (operation, operands...)."""
    body = b"".join(struct.pack(f"<{len(each)}I", len(each) << 16 | each[0], *each[1:]) for each in instructions)
    return memoryview(HEAD + body)


def text(value):
    data = value.encode() + b"\0"
    data += bytes(-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


def test_h19_the_entry_points_of_the_samples():
    parsed = parse_module(memoryview(MODULES["vector"]))
    assert [(entry.name, entry.bindings, entry.constants, entry.workgroup) for entry in parsed.entries] == [
        ("add_i32", 3, 1, (256, 1, 1)),
        ("mix_u32", 2, 2, (256, 1, 1)),
        ("empty", 0, 0, (1, 1, 1)),
        ("fill_index", 1, 2, (256, 1, 1)),
        ("saxpy_f32", 2, 2, (256, 1, 1)),
    ]
    assert (parsed.version, parsed.words, parsed.owned) == ((1, 3), 0, ())


def test_h19_specialization_constants_and_memory_of_the_samples():
    parsed = parse_module(memoryview(MODULES["special"]))
    assert parsed.words == 5
    assert parsed.owned == (Owned("total", 0, 4), Owned("table", 1, 64))
    faults = parse_module(memoryview(MODULES["faults"]))
    assert [each.name for each in faults.owned] == ["remora_status", "remora_gate"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has 0 bytes"),
        (HEAD[:-4], "has 16 bytes"),
        (HEAD + b"abc", "has 23 bytes"),
        (b"\x7fELF" + HEAD[4:], "begins with 0x464c457f"),
        (HEAD[3::-1] + HEAD[4:], "begins with 0x03022307"),
        (HEAD + struct.pack("<I", 17), "claims an instruction of 0 words"),
        (HEAD + struct.pack("<2I", 3 << 16 | 17, 1), "claims an instruction of 3 words"),
    ],
)
def test_h25_what_is_no_module(data, message):
    with pytest.raises(UsageError, match=f"the artifact is no SPIR-V module, or a damaged one: .*{message}"):
        parse_module(memoryview(data))


@pytest.mark.parametrize(
    ("instructions", "error", "message"),
    [
        ([(17,)], UsageError, "word 5 has 0 operands of at least 1"),
        ([(5, 1, 0x61616161)], UsageError, "a string has no end"),
        ([(15, 5, 1, *text("k")), (15, 5, 2, *text("k"))], UsageError, "two of its entry points have one name"),
        ([(71, 3, 1, 0), (71, 4, 1, 2)], UsageError, r"have the ids \[0, 2\]: number them from 0"),
        ([(59, 1, 2, 0)], UnsupportedError, "uses an image or a sampler"),
        ([(59, 1, 2, 2)], UnsupportedError, "uses a uniform buffer"),
        ([(30, 1), (32, 2, 12, 1), (59, 2, 3, 12)], UnsupportedError, "is not in descriptor set 0"),
        ([(71, 3, 34, 0), (71, 3, 33, 0), (29, 1, 9), (32, 2, 12, 1), (59, 2, 3, 12)], UnsupportedError, "has no fixed size"),
    ],
)
def test_h25_what_a_module_may_not_say(instructions, error, message):
    with pytest.raises(error, match=message):
        parse_module(module(*instructions))


def pushes(*members, offsets, chain=None):
    """A kernel that looks into a block of push constants with these members."""
    block = [(72, 5, index, 35, offset) for index, offset in enumerate(offsets)]
    kinds = [(21, 1, 32, 0), (39, 2, 5349), (30, 5, *members), (32, 6, 9, 5), (59, 6, 7, 9)]
    called = chain or [(54, 1, 10, 0, 1), (65, 1, 8, 7, 1), (56,)]
    return module((15, 5, 10, *text("k")), *block, *kinds, *called)


def test_h19_addresses_come_first_then_words():
    (entry,) = parse_module(pushes(2, 2, 1, 1, offsets=(0, 8, 16, 20))).entries
    assert (entry.bindings, entry.constants) == (2, 2)


def test_h19_what_a_called_function_looks_into_counts():
    chain = [(54, 1, 11, 0, 1), (61, 1, 8, 7), (56,), (54, 1, 10, 0, 1), (57, 1, 9, 11), (57, 1, 9, 10), (56,)]
    (entry,) = parse_module(pushes(2, offsets=(0,), chain=chain)).entries
    assert entry.bindings == 1


@pytest.mark.parametrize(("members", "offsets"), [((1, 2), (0, 8)), ((2, 2), (0, 16)), ((2, 2), (8, 0))])
def test_h25_other_layouts_of_push_constants_are_refused(members, offsets):
    with pytest.raises(UsageError, match="other push constants before or between the addresses"):
        parse_module(pushes(*members, offsets=offsets))


def test_h25_push_constants_of_no_size_are_refused():
    with pytest.raises(UsageError, match="push constants of no fixed size"):
        parse_module(pushes(2, 77, offsets=(0, 8)))


@given(st.sampled_from(sorted(MODULES)), st.data())
def test_h25_a_changed_module_gives_an_answer_or_a_clear_error(name, data):
    words = list(struct.unpack(f"<{len(MODULES[name]) // 4}I", MODULES[name]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(words) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                words[at] ^= 1 << data.draw(st.integers(0, 31))
            case 1:
                words[at] = data.draw(st.integers(0, 0xFFFFFFFF))
            case 2:
                del words[at]
            case 3:
                words[at:at] = words[: data.draw(st.integers(0, 30))]
        if not words:
            return
    try:
        parse_module(memoryview(struct.pack(f"<{len(words)}I", *words)))
    except (UsageError, UnsupportedError) as error:
        assert "artifact" in str(error)
