"""Where an allocation lives: said by the caller, never guessed (requirement G02)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["DEVICE", "HOST_VISIBLE", "Kind", "Placement", "local_to", "shared_with"]


class Kind(Enum):
    """The four ways."""

    DEVICE = "device"
    HOST_VISIBLE = "host visible"
    LOCAL = "local"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Placement:
    """A kind, and for LOCAL and SHARED the further engine that it names. Use the constants and functions of this module."""

    kind: Kind
    engine: int = 0

    def __str__(self) -> str:
        return self.kind.value + (f" (engine {self.engine})" if self.engine else "")

    @property
    def engines(self) -> tuple[int, ...]:
        """The engines that have memory of it, the one that is filled first in front."""
        return (0, self.engine) if self.kind is Kind.SHARED else (self.engine,)

    @property
    def mappable(self) -> bool:
        """Whether the host may map it."""
        return self.kind is not Kind.DEVICE


DEVICE = Placement(Kind.DEVICE)
"""On the first engine, not for the host: it comes and goes by copies."""
HOST_VISIBLE = Placement(Kind.HOST_VISIBLE)
"""On the first engine, and the host may map it."""


def local_to(engine: int) -> Placement:
    """On a further engine alone; the host may map it. `engine` counts the runtime's devices from 0."""
    return Placement(Kind.LOCAL, engine)


def shared_with(engine: int) -> Placement:
    """One allocation for the first engine and a further one, and for the host.

    Each engine has memory of its own; what one wrote is staged to the other before it is used there.
    """
    return Placement(Kind.SHARED, engine)
