"""Whether this is a compiled installation (docs/operations.md)."""

from __future__ import annotations

from remora.base import frontier

__all__ = ["is_compiled"]


def is_compiled() -> bool:
    """Whether the hot modules are extension modules here."""
    return not frontier.__file__.endswith(".py")
