"""Foreign code inside a graph: what a callback gets (requirement G10)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from remora.hal.buffer import Access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remora.graph.view import View
    from remora.hal.buffer import BufferView

__all__ = ["host_memory", "scoped_call"]


def scoped_call(function: Callable[..., object], uses: Sequence[tuple[View, Access]], *, mapped: bool) -> Callable[[], object]:
    """What the host lane calls."""
    views = [(view.on(view.placement.engines[0]), access) for view, access in uses]
    if not mapped:
        return lambda: function(*(view for view, _ in views))

    def call() -> None:
        with ExitStack() as stack:
            function(*[stack.enter_context(host_memory(view, access)) for view, access in views])

    return call


@contextmanager
def host_memory(view: BufferView, access: Access) -> Iterator[memoryview]:
    """The bytes for the host, during the block: the memory itself where the host can address it, else a copy that is taken back.

    Nothing else may be at work there. What is only written begins undefined.
    """
    direct = view.buffer.host_memory()
    if direct is not None:
        block = direct[view.offset : view.offset + view.size]
        yield block if access & Access.WRITE else block.toreadonly()
        return
    queue = view.buffer.device.queue
    block = memoryview(bytearray(view.size))
    if access & Access.READ:
        queue.read(view, block).wait()
    yield block if access & Access.WRITE else block.toreadonly()
    if access & Access.WRITE:
        queue.update(view, block).wait()
