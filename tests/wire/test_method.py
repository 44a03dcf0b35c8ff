"""H25: what the answers of control calls may look like, whatever the call."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from remora.base.ids import ResourceType, make_id, make_provisional
from remora.errors import PeerError
from remora.wire.layout import Reader, Writer
from remora.wire.method import Done, Loaded, answers_done, answers_loaded


@dataclass(frozen=True)
class Ask:
    number: int


def write(writer, body):
    return writer.u64(body.number)


def read(reader):
    number = reader.u64()
    reader.end()
    return Ask(number)


DONE = answers_done(Ask, write, read)
LOADED = answers_loaded(Ask, write, read, ResourceType.EXECUTABLE, "an executable")
EXECUTABLE = make_id(ResourceType.EXECUTABLE, 1, 2)


def body(writer):
    """What stands behind a frame's header."""
    return memoryview(writer.frame(0x15))[8:]


@pytest.mark.parametrize(("method", "answer"), [(DONE, Done()), (LOADED, Loaded(EXECUTABLE))])
def test_h25_an_answer_comes_back(method, answer):
    assert method.read_answer(Reader(body(method.write_answer(Writer(), answer)), "answer")) == answer
    assert method.read(Reader(body(method.write(Writer(), Ask(7))), "request")) == Ask(7)
    assert method.request is Ask


def test_h25_an_answer_that_says_nothing_says_nothing_more():
    assert not body(DONE.write_answer(Writer(), Done()))
    with pytest.raises(PeerError):
        DONE.read_answer(Reader(memoryview(bytes(8)), "answer"))


@pytest.mark.parametrize(
    "resource", [0, make_id(ResourceType.BUFFER, 1, 2), make_provisional(ResourceType.EXECUTABLE, 3), EXECUTABLE | 1 << 48]
)
def test_h25_an_answer_names_a_thing_of_its_kind(resource):
    with pytest.raises(PeerError, match="no id of an executable"):
        LOADED.read_answer(Reader(body(Writer().u64(resource)), "answer"))
