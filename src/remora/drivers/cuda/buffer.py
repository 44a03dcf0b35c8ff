"""A buffer: a block of the GPU's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from remora.hal.memory import Memory
from remora.hal.memory_buffer import CopiedBuffer

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer, BufferView

__all__ = ["CudaBuffer", "CudaMemory", "block_of"]


class CudaMemory(Memory, Protocol):
    """A block, a global of a module, or a range of addresses."""

    @property
    def address(self) -> int:
        """Where it is. Raises NotMadeError before it is there, and why when it never will be."""


class CudaBuffer(CopiedBuffer[CudaMemory]):
    """A mapping is a copy (H20)."""

    __slots__ = ()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes as an array for CuPy, PyTorch and Numba, valid as long as the buffer and its device are open.

        Nothing is ordered: wait for what the queue does with it first.
        """
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.memory.address, False), "version": 3, "strides": None}


def block_of(buffer: Buffer | BufferView) -> CudaMemory:
    """What an operation touches; the reference keeps it alive until the operation is done."""
    owner: CudaBuffer = buffer.buffer  # type: ignore[assignment]  # the queue has checked that it is
    return owner._memory or owner.memory
