"""H22: virtual memory against an oracle, for every driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import UsageError
from remora.hal.buffer import Access
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG
from remora.testing.cts.hal_random import UNCHECKED
from remora.testing.cts.hal_virtual_memory import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from remora.hal.device import Device
    from remora.hal.virtual_memory import PhysicalMemory

__all__ = ["TestRandomPages"]


class Pages:
    """A reservation beside a dict of its pages: page -> (which memory, page of it, access)."""

    SIZES = (3, 5)

    def __init__(self, device: Device) -> None:
        self.page = device.info.page_size
        self.queue = device.queue
        self.space = device.reserve(PAGES * self.page)
        self.memory: list[PhysicalMemory] = [device.physical(size * self.page) for size in self.SIZES]
        self.oracle: dict[int, tuple[int, int, Access]] = {}
        self.contents = [bytearray(size) for size in self.SIZES]  # one byte stands for its page
        for which, memory in enumerate(self.memory):
            self.space.map(which * 8 * self.page, memory)
            self.queue.fill(self.space.view(which * 8 * self.page, memory.size)).wait(LONG)
            self.space.unmap(which * 8 * self.page, memory.size)

    def step(self, kind: str, first: int, count: int, which: int, other: int) -> None:
        """One change or operation, which goes as the dict says."""
        good, call = getattr(self, f"_{kind}")(range(first, first + count), which, other)
        if good:
            call()
            self._check()
            return
        with pytest.raises(UsageError):
            call()

    def _allowed(self, pages: range, access: Access) -> bool:
        return all(page in self.oracle and not access & ~self.oracle[page][2] for page in pages)

    def _view(self, pages: range) -> Any:
        start = min(pages.start, PAGES) * self.page
        return self.space.view(start, min(len(pages) * self.page, PAGES * self.page - start))

    def _map(self, pages: range, which: int, other: int) -> tuple[bool, Callable[[], Any]]:
        start = other % 8
        good = (
            bool(pages) and pages.stop <= PAGES and start + len(pages) <= self.SIZES[which] and not self.oracle.keys() & set(pages)
        )

        def call() -> None:
            self.space.map(pages.start * self.page, self.memory[which], start * self.page, len(pages) * self.page)
            self.oracle |= {page: (which, start + index, Access.READ_WRITE) for index, page in enumerate(pages)}

        return good, call

    def _unmap(self, pages: range, which: int, other: int) -> tuple[bool, Callable[[], Any]]:
        def call() -> None:
            self.space.unmap(pages.start * self.page, len(pages) * self.page)
            for page in pages:
                del self.oracle[page]

        return bool(pages) and self._allowed(pages, Access(0)), call

    def _protect(self, pages: range, which: int, other: int) -> tuple[bool, Callable[[], Any]]:
        access = (Access(0), Access.READ, Access.READ_WRITE)[other % 3]

        def call() -> None:
            self.space.protect(pages.start * self.page, len(pages) * self.page, access)
            self.oracle |= {page: (*self.oracle[page][:2], access) for page in pages}

        return bool(pages) and self._allowed(pages, Access(0)), call

    def _fill(self, pages: range, which: int, other: int) -> tuple[bool, Callable[[], Any]]:
        view = self._view(pages)
        inside = range(pages.start, min(pages.stop, max(PAGES, pages.start)))

        def call() -> None:
            self.queue.fill(view, bytes([other])).wait(LONG)
            for page in inside:
                at, index, _ = self.oracle[page]
                self.contents[at][index] = other

        return self._allowed(inside, Access.WRITE), call

    def _read(self, pages: range, which: int, other: int) -> tuple[bool, Callable[[], Any]]:
        view = self._view(pages)
        inside = range(pages.start, min(pages.stop, max(PAGES, pages.start)))

        def call() -> None:
            into = bytearray(view.size)
            self.queue.read(view, into).wait(LONG)
            expected = (self.contents[at][index] for at, index, _ in (self.oracle[page] for page in inside))
            assert same(into, b"".join(bytes([value]) * self.page for value in expected))

        return self._allowed(inside, Access.READ), call

    def _check(self) -> None:
        found = {
            span.offset // self.page + index: (
                self.memory.index(span.physical),
                span.physical_offset // self.page + index,
                span.access,
            )
            for span in self.space.spans
            for index in range(span.length // self.page)
        }
        assert found == self.oracle
        for left, right in zip(self.space.spans, self.space.spans[1:], strict=False):
            assert left.offset + left.length <= right.offset
        for which, memory in enumerate(self.memory):
            assert memory.mapped == any(at == which for at, *_ in self.oracle.values())

    def finish(self) -> None:
        """Everything is closed."""
        self.space.clear()
        self.space.close()
        for memory in self.memory:
            memory.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["map", "map", "unmap", "protect", "fill", "read"]),
        st.integers(0, PAGES),
        st.integers(0, 5),
        st.integers(0, 1),
        st.integers(0, 255),
    ),
    max_size=40,
)


class TestRandomPages:
    """H22: whatever is mapped, unmapped and protected, a reservation is what a dict of pages would be."""

    @settings(max_examples=40, deadline=None, suppress_health_check=UNCHECKED, database=None)
    @given(steps=STEPS)
    def test_h22_a_reservation_is_what_a_dict_of_pages_would_be(self, device: Device, page: int, steps: list[Any]) -> None:
        pages = Pages(device)
        for step in steps:
            pages.step(*step)
        pages.finish()
