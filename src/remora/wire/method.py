"""What a call of the control lane is: how its request and its answer are written and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from remora.base.ids import ResourceType
from remora.errors import PeerError
from remora.wire.layout import Reader, Writer, is_id

__all__ = ["MAX_TARGET", "Done", "Loaded", "Method", "answers_done", "answers_loaded"]

#: Bytes of a target's family or key.
MAX_TARGET: Final = 256


class Method(NamedTuple):
    """One method: the class of its request's body, and four functions. The readers check everything that they read."""

    request: type[Any]
    write: Callable[[Writer, Any], Writer]
    read: Callable[[Reader], Any]
    write_answer: Callable[[Writer, Any], Writer]
    read_answer: Callable[[Reader], Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The canonical id of what was made."""

    resource: int


@dataclass(frozen=True, slots=True)
class Done:
    """It is done, and there is nothing more to say."""


def answers_loaded(
    request: type[Any], write: Callable[[Writer, Any], Writer], read: Callable[[Reader], Any], kind: ResourceType, thing: str
) -> Method:
    """A method that makes a resource of this kind; its answer is the canonical id. `thing` names it in messages."""

    def read_loaded(reader: Reader) -> Loaded:
        resource = reader.u64()
        reader.end()
        if not is_id(resource, kind, provisional=False):
            raise PeerError(f"a response names {resource:#x}, which is no id of {thing}")
        return Loaded(resource)

    return Method(request, write, read, lambda writer, body: writer.u64(body.resource), read_loaded)


def answers_done(request: type[Any], write: Callable[[Writer, Any], Writer], read: Callable[[Reader], Any]) -> Method:
    """A method whose answer says nothing but that it is done."""

    def read_done(reader: Reader) -> Done:
        reader.end()
        return Done()

    return Method(request, write, read, lambda writer, _: writer, read_done)
