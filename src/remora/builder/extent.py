"""Extents of bindings in a kernel source: `n`, `512 * 512`, `4 * n + 16`, `TILE * n`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from remora.errors import UsageError

__all__ = ["Extent", "number", "parse_extent"]

_MAX = 1 << 62


class Extent(NamedTuple):
    """`fixed + scale * constant` elements."""

    fixed: int = 0
    scale: int = 0
    constant: str = ""


def number(text: str) -> int:
    """A C integer literal, with or without a suffix. Raises ValueError for anything else."""
    plain = re.sub(r"[uUlL]+$", "", text.strip())
    return int(plain, 16 if plain.lower().startswith(("0x", "-0x")) else 10)


def parse_extent(text: str, macros: Mapping[str, int], constants: Mapping[str, str]) -> Extent:
    """A sum of products; `constants` are the kernel's, with their types. Raises UsageError that says what is wrong."""
    fixed, scale, named = 0, 0, ""
    for term in text.split("+"):
        factor, name = _product(term, text, macros, constants)
        if not name:
            fixed += factor
        elif named and name != named:
            raise UsageError(f"the extent {text.strip()!r} names {named} and {name}; a binding grows with one constant")
        else:
            scale, named = scale + factor, name
    if fixed > _MAX or scale > _MAX:
        raise UsageError(f"the extent {text.strip()!r} is absurdly large")
    return Extent(fixed, scale, named)


def _product(term: str, whole: str, macros: Mapping[str, int], constants: Mapping[str, str]) -> tuple[int, str]:
    factor, name = 1, ""
    for part in (each.strip() for each in term.split("*")):
        if part in constants:
            if constants[part][0] == "f" or name:
                raise UsageError(f"the extent {whole.strip()!r}: {part} must be an integer constant, once in a product")
            name = part
        elif part in macros:
            factor *= macros[part]
        else:
            try:
                factor *= number(part)
            except ValueError:
                there = ", ".join([*constants, *macros]) or "none"
                raise UsageError(
                    f"{part!r} in {whole.strip()!r} is neither a number, nor a constant of the kernel, nor #defined as a number "
                    f"({there})"
                ) from None
    if factor < 0:
        raise UsageError(f"the extent {whole.strip()!r} is negative")
    return factor, name
