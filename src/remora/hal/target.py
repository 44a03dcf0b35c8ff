"""Targets: the kinds of machine code a device takes, and which artifact fits which device (requirement H19).

A device advertises its targets in order of preference; an artifact is made for one target. The client intersects the two,
without knowing any driver. The lists a device advertises already hold everything it can run (an x86-64-v3 machine lists
x86_64-v3, x86_64-v2 and x86_64), so choosing is: the first advertised target that an artifact was made for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from remora.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Target", "choose_target", "parse_target"]


class Target(NamedTuple):
    """(family, key): ("cpu", "x86_64-v3"), ("cuda", "sm_90"), ("vulkan", "spirv1.3+bda"). Written `cpu:x86_64-v3`.

    Example: `Target("cpu", "x86_64-v3") in device.targets`.
    """

    family: str
    key: str

    def __str__(self) -> str:
        return f"{self.family}:{self.key}"


def parse_target(text: str) -> Target:
    """`cpu:x86_64-v3` as a Target. Raises UsageError for anything else."""
    family, colon, key = text.partition(":")
    if not (family and colon and key):
        raise UsageError(f"{text!r} is no target; write family:key, such as cpu:x86_64-v3")
    return Target(family, key)


def choose_target(advertised: Sequence[Target], available: Iterable[Target]) -> Target:
    """The first of the device's targets that an artifact was made for. Raises NotFoundError that lists both sides."""
    there = set(available)
    for target in advertised:
        if target in there:
            return target
    takes = ", ".join(map(str, advertised)) or "nothing"
    has = ", ".join(sorted(map(str, there))) or "nothing"
    raise NotFoundError(
        f"no artifact fits the device: it takes {takes}; the bundle has {has}. Build the bundle for one of the former"
    )
