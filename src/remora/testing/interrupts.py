"""Ctrl-C at every place where it may come: KeyboardInterrupt in this thread, where CPython looks for signals.

    interrupts = Interrupts()
    for place in interrupts.places(job):
        if interrupts.strike(place, job):       # job() raised KeyboardInterrupt, or went on in spite of it
            ...                                 # what is left is whole, or closed

CPython looks for signals at the start of a function, after a call of something that is not written in Python, and at a jump back.
A trace function finds those places in remora, and in the standard library where remora calls it. Only the calling thread is
watched. A debugger or a coverage measurement of this thread stands still meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dis import opmap
from types import FrameType
from typing import Any, NamedTuple

from remora.testing.injection import OUTSIDE, PACKAGE

__all__ = ["Interrupts", "Place"]

#: After these, CPython looks for signals: calls, and jumps back that are taken.
CALLS = frozenset(opmap[name] for name in ("CALL", "CALL_FUNCTION_EX") if name in opmap)
JUMPS = frozenset(number for name, number in opmap.items() if "JUMP_BACKWARD" in name and "NO_INT" not in name)
START = threading.Thread.start.__code__
#: How far above a frame of the standard library remora is looked for.
DEPTH = 8


class Place(NamedTuple):
    """Where signals are looked for: a line of remora or below it, and the offset in its bytecode; -1 is the start of a function."""

    name: str
    offset: int


class Interrupts:
    """Watches one thread while a job runs. One at a time in a thread."""

    def __init__(self) -> None:
        self.struck = False
        """Whether the last job came by the place."""
        self._seen: list[Place] = []
        self._target: Place | None = None
        self._passes = 0
        self._returned: FrameType | None = None

    def places(self, job: Callable[[], object]) -> dict[Place, int]:
        """Where a run of the job may be interrupted, in the order of first passes, and how often it comes by."""
        self._seen, self._target = [], None
        self._watch(job)
        passes: dict[Place, int] = {}
        for place in self._seen:
            passes[place] = passes.get(place, 0) + 1
        self._seen = []
        return passes

    def strike(self, place: Place, job: Callable[[], object], nth: int = 1) -> bool:
        """Run the job and raise KeyboardInterrupt at the `nth` pass of the place; whether it came by."""
        self._target, self._passes, self.struck = place, nth, False
        try:
            self._watch(job)
        finally:
            self._target = None
        return self.struck

    def _watch(self, job: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            job()
        finally:
            sys.settrace(before)
            self._returned = None  # a frame holds all that it worked on

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not _is_watched(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code, last = frame.f_code.co_code, -1

        def on_event(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "return":
                self._returned = None if frame.f_code.co_name == "__init__" else frame.f_back
            elif event == "exception":
                last = -1  # a call that raises is followed by its handler, without a look at signals
            elif event == "opcode":
                looks = last >= 0 and self._returned is not frame and _looks(code[last], jumped=frame.f_lasti < last)
                self._returned = None
                before, last = last, frame.f_lasti
                if looks:
                    self._at(frame, before)
            return on_event

        self._at(frame, -1)
        return on_event

    def _at(self, frame: FrameType, offset: int) -> None:
        if self.struck:
            return
        target = self._target
        if target is None:
            self._seen.append(Place(_name(frame), offset))
        elif target.offset == offset and target.name == _name(frame):
            self._passes -= 1
            if not self._passes:
                self.struck = True
                raise KeyboardInterrupt


def _looks(operation: int, *, jumped: bool) -> bool:
    return operation in CALLS or (jumped and operation in JUMPS)


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} {code.co_qualname}"


def _is_watched(frame: FrameType) -> bool:
    """Code of remora, and what it calls of the standard library.

    But not `Thread.start`: an interruption of its own steps may leave a thread that never begins, whoever starts it.
    """
    above: FrameType | None = frame
    for _ in range(DEPTH):
        if above is None or above.f_code.co_filename.startswith("<frozen") or above.f_code is START:
            return False
        name = above.f_code.co_filename
        if name.startswith(PACKAGE):
            return not name.removeprefix(PACKAGE).startswith(OUTSIDE)
        above = above.f_back
    return False
