"""Device memory: here host memory. A driver asks its device for memory here, and gives it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.hal.memory import LateMemory

if TYPE_CHECKING:
    from remora.drivers.null.device import NullDevice

__all__ = ["Memory"]


class Memory(LateMemory):
    """The memory of one buffer. The buffer and every submitted operation hold it; it goes with the last of them."""

    __slots__ = ("_bytes", "_device")

    def __init__(self, device: NullDevice, size: int) -> None:
        super().__init__(size)
        self._device = device
        self._bytes: memoryview | None = None

    def _allocate(self) -> None:
        self._device.count(self.size)
        self._counted = True
        self._bytes = memoryview(bytearray(self.size))

    def _count_out(self) -> None:
        self._device.drop(self.size)

    def at(self, offset: int, size: int) -> memoryview:
        """See `HostMemory.at`. A driver whose memory the host does not address gives what its operations need instead."""
        if self._bytes is None:
            raise self._missing()
        return self._bytes[offset : offset + size]

    def __del__(self) -> None:
        self.retire()
