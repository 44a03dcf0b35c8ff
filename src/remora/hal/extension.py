"""Vendor extensions: operations of one kind of device, under a namespace that the device declares (requirement H17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from remora.errors import UnsupportedError

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["MAX_OPERANDS", "MAX_PAYLOAD", "Extension", "check_extension"]

#: Bytes of a payload, and buffers of one operation.
MAX_PAYLOAD: Final = 64 << 10
MAX_OPERANDS: Final = 64


@dataclass(frozen=True, slots=True)
class Extension:
    """A namespace, and the names of its operations, which are numbered from 0. Travels in the catalog.

    Example: `remora.open("null").info.extensions[0].operations`.
    """

    namespace: str
    operations: tuple[str, ...]


def check_extension(device: Device, namespace: str, operation: int) -> None:
    """Raise UnsupportedError, which says what there is, unless the device declares this operation."""
    for extension in device.info.extensions:
        if extension.namespace == namespace:
            if 0 <= operation < len(extension.operations):
                return
            there = ", ".join(f"{number} {name}" for number, name in enumerate(extension.operations)) or "none"
            raise UnsupportedError(f"the extension {namespace} has no operation {operation}; it has: {there}")
    known = ", ".join(extension.namespace for extension in device.info.extensions) or "none"
    raise UnsupportedError(f"{device.info.name} has no extension {namespace!r}; it has: {known}")
