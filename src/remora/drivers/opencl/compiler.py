"""The compiler of one device, and what it compiled lately: a program that is loaded again need not be compiled again."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyopencl as cl

from remora.drivers.opencl.failures import failing
from remora.errors import UsageError

__all__ = ["Compiler"]

#: Later standards have variables that a program keeps.
DATALESS = "1.2"
#: Programs that are kept, and how much of a build log an error carries.
KEPT = 16
MAX_LOG = 4000


class Compiler:
    """Any thread may call `compile`; the same text of OpenCL C 1.2, whose programs hold no data, gives the same program."""

    def __init__(self, context: cl.Context, device: cl.Device, name: str) -> None:
        self._context = context
        self._device = device
        self._name = name
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, cl.Program] = OrderedDict()

    def compile(self, standard: str, text: str) -> cl.Program:
        """A program of OpenCL C `standard`, such as "1.2". Raises UsageError with the compiler's words."""
        if standard != DATALESS:
            return self._build(standard, text)
        with self._lock:
            program = self._kept.get(text)
            if program is not None:
                self._kept.move_to_end(text)
                return program
        program = self._build(standard, text)
        with self._lock:
            self._kept[text] = program
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return program

    def _build(self, standard: str, text: str) -> cl.Program:
        with failing("the artifact's source"):
            program = cl._cl._Program(self._context, text)  # the plain object: pyopencl's own keeps a cache and writes files
        try:
            program._build(f"-cl-std=CL{standard} -cl-kernel-arg-info".encode(), [self._device])
        except cl.Error:
            log = str(program.get_build_info(self._device, cl.program_build_info.LOG)).strip()
            shown = log if len(log) <= MAX_LOG else log[:MAX_LOG] + " ..."
            raise UsageError(f"the artifact does not compile for {self._name}: {shown or 'no reason given'}") from None
        return program
