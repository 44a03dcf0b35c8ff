"""What a session tells its shell. Hot ones are named tuples, cold ones frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from remora.base.frontier import Frontier
from remora.errors import Error
from remora.wire.bootstrap import Accept, Hello
from remora.wire.profile import Records, Taken

__all__ = [
    "Accepted",
    "Advanced",
    "AllocateReceived",
    "CommandReceived",
    "Event",
    "EventAsked",
    "EventTold",
    "Failed",
    "Greeted",
    "LanesUp",
    "Named",
    "Profiled",
    "ReleaseReceived",
    "RequestReceived",
    "Responded",
    "ResultReceived",
    "Unnamed",
]


class Advanced(NamedTuple):
    """Client: everything on `axis` up to `epoch` is done; with `failure`, `epoch` failed and the axis has ended."""

    axis: int
    epoch: int
    failure: Error | None


class ResultReceived(NamedTuple):
    """Client: what the READ at (axis, epoch) read. `data` is valid until the next receive."""

    axis: int
    epoch: int
    data: memoryview


class Named(NamedTuple):
    """Client: the server's id for a provisional one."""

    provisional: int
    canonical: int


class Unnamed(NamedTuple):
    """Client: a provisional id that will never be one, and why."""

    provisional: int
    error: Error


class CommandReceived(NamedTuple):
    """Server: one command. `body` is the op's named tuple from wire.commands; views in it are valid until the next receive."""

    op: int
    axis: int
    epoch: int
    waits: Frontier
    body: Any


class AllocateReceived(NamedTuple):
    """Server: make a buffer of `size` bytes on a device under this provisional id; a late one gets its memory by ALLOCA."""

    device: int
    provisional: int
    size: int
    late: bool = False


class ReleaseReceived(NamedTuple):
    """Server: these ids are not used by any command after the first `submissions` ones."""

    submissions: int
    ids: tuple[int, ...]


class EventAsked(NamedTuple):
    """Server: the host does something with an event; `number` is that of a query or wait to answer with `event_state`."""

    action: int
    device: int
    event: int
    number: int


class EventTold(NamedTuple):
    """Client: the answer to a query or wait."""

    action: int
    event: int
    number: int
    state: bool | Error


@dataclass(frozen=True, slots=True)
class Greeted:
    """Server: a client asks for a session; answer with `accept` or `reject`."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Accepted:
    """Client: the server agreed; join the other lanes."""

    accept: Accept


@dataclass(frozen=True, slots=True)
class LanesUp:
    """All lanes belong to the session: it is operational."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """Server: a call to answer with `respond`; `body` is its method's dataclass (wire.calls)."""

    id: int
    body: Any


@dataclass(frozen=True, slots=True)
class Responded:
    """Client: the answer to a request (of its method's kind), or an Error."""

    id: int
    body: Any


@dataclass(frozen=True, slots=True)
class Profiled:
    """Client: records of a profile. Server: which of them the client's sink took."""

    body: Records | Taken


@dataclass(frozen=True, slots=True)
class Failed:
    """The session ended. Comes once; `error` is the first cause."""

    error: Error


Event: TypeAlias = (
    Advanced
    | ResultReceived
    | Named
    | Unnamed
    | CommandReceived
    | AllocateReceived
    | ReleaseReceived
    | EventAsked
    | EventTold
    | Greeted
    | Accepted
    | LanesUp
    | RequestReceived
    | Responded
    | Profiled
    | Failed
)
