"""docs/wire.md says what the code does: its tables and drawings are drawn from it."""

import re

import pytest
from tests.wire.drawing import PAGE, PARTS, draw, name_of

from remora.session.state import SENDER


@pytest.mark.interpreted
def test_the_page_is_drawn_from_the_code():
    text = PAGE.read_text()
    assert draw(text) == text, "docs/wire.md is old: run `python -m tests.wire.drawing`"


def test_the_page_has_every_part_once():
    assert sorted(re.findall(r"<!-- drawn: ([a-z ]+) -->", PAGE.read_text())) == sorted(PARTS)


@pytest.mark.interpreted
def test_a_changed_drawing_is_noticed():
    text = PAGE.read_text()
    assert draw(text.replace("| 0x30 | COMMAND |", "| 0x30 | ORDER |")) == text


def test_every_frame_kind_has_one_name():
    assert len({name_of(kind) for kind in SENDER}) == len(SENDER)
    assert name_of(0x10) == ("PING", "control")
    assert name_of(0x30) == ("COMMAND", "queue")
    with pytest.raises(AssertionError, match="0xee has no name"):
        name_of(0xEE)
