"""What the builder asks of a family of targets: the source in its language, a compiler, and machine code.

A family is one file: `cpu.py`, `opencl.py`, `cuda.py`, `amdgpu.py`. `text` is the same for every family: the source with its
declarations replaced by the family's own words for them, and the family's header where `#include <remora.h>` stands.
"""

from __future__ import annotations

import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import ClassVar

from remora.builder.source import Declaration, GlobalMemory, KernelDeclaration, Source, Specialization
from remora.errors import DeadlineError, UsageError
from remora.hal.target import Target

__all__ = ["COMPILE_SECONDS", "CompilerMissing", "Family", "run_compiler", "specialization_expression"]

#: Longest time for one compiler run, in seconds.
COMPILE_SECONDS = 300.0
MAX_OUTPUT = 20_000
_HEADERS = Path(__file__).parent / "include"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+<remora\.h>[^\n]*$", re.MULTILINE)


class CompilerMissing(Exception):
    """There is no compiler for a target; the text says what to install."""


class Family(ABC):
    """One family of targets."""

    name: ClassVar[str]
    """As in targets: cpu, opencl, cuda, amdgpu."""
    targets: ClassVar[tuple[Target, ...]]
    """What is built when nothing is asked for."""
    header: ClassVar[str]
    suffix: ClassVar[str]
    """Of the file that the compiler reads."""
    memory: ClassVar[str] = ""
    """The address space of bindings."""
    restrict: ClassVar[str] = "restrict"

    @abstractmethod
    def check(self, target: Target) -> None:
        """Raise UsageError when the family has no such target; the message lists what it has."""

    @abstractmethod
    def compiler(self, target: Target) -> str:
        """What compiles for this target, for people. Raises CompilerMissing."""

    @abstractmethod
    def compile(self, target: Target, text: str, folder: Path) -> bytes:
        """The artifact. `folder` is empty and the caller's. Raises UsageError with the compiler's output."""

    def text(self, source: Source) -> str:
        """The source in the family's language."""
        pieces, at = [], 0
        places = [(each.place, self.begin_kernel(source, each)) for each in source.kernels]
        places += [(each.place, self.specialization(each)) for each in source.specializations]
        places += [(each.place, self.memory_of(each)) for each in source.globals]
        for place, replacement in sorted(places, key=lambda entry: entry[0].begin):
            pieces += [source.text[at : place.begin], replacement, mark(source, place)]
            at = place.end
        return self._with_header(source, "".join([*pieces, source.text[at:], "\n"])) + self.trailer(source)

    def _with_header(self, source: Source, text: str) -> str:
        found = _INCLUDE.search(text)
        if found is None:
            raise UsageError(f"{source.name}: begin the source with #include <remora.h>")
        before = text[: found.end()]
        last = list(re.finditer(r'^#line (\d+) "([^"]+)"$', before, re.MULTILINE))[-1]
        line = int(last[1]) + before.count("\n", last.end()) - 1
        top = f'#line 1 "{self.header}"\n{(_HEADERS / self.header).read_text()}{self.prelude(source)}'
        return f'{text[: found.start()]}{top}#line {line} "{last[2]}"\n{text[found.end() :]}'

    def prelude(self, source: Source) -> str:
        """What follows the header: macros and tables that the declarations need."""
        return ""

    def trailer(self, source: Source) -> str:
        """What follows the source."""
        return ""

    @abstractmethod
    def begin_kernel(self, source: Source, kernel: KernelDeclaration) -> str:
        """The head of a kernel's function, with the brace that opens its body."""

    @abstractmethod
    def specialization(self, declared: Specialization) -> str:
        """What stands for a specialization constant: an expression under its name."""

    @abstractmethod
    def memory_of(self, declared: GlobalMemory) -> str:
        """What stands for a global."""

    def parameters(self, kernel: KernelDeclaration) -> list[str]:
        """Pointers to the bindings, then the constants, each in the order of the manifest."""
        pointers = [
            f"{self.memory}{'const ' if rule.access == 1 else ''}{kind} *{self.restrict} {rule.name}"
            for rule, kind in zip(kernel.info.bindings, kernel.types, strict=True)
        ]
        return pointers + [f"{rule.type} {rule.name}" for rule in kernel.info.constants]

    def shape(self, kernel: KernelDeclaration) -> str:
        """The macros that FOR_ELEMENTS and FOR_ITEMS read, for the body that follows."""
        x, y, z = kernel.info.workgroup
        values = {
            "ELEMENTS": f"{kernel.info.grid.elements[0]}u",
            "ITEMS_X": f"{x}u",
            "ITEMS_Y": f"{y}u",
            "ITEMS": f"{prod((x, y, z))}u",
        }
        return "\n" + "".join(f"#undef REMORA_{key}\n#define REMORA_{key} {value}\n" for key, value in values.items())


def mark(source: Source, place: Declaration) -> str:
    """The directive that tells the compiler which line of the source comes next."""
    line = place.line + source.text.count("\n", place.begin, place.end)
    return f'\n#line {line} "{place.file}"\n'


def specialization_expression(declared: Specialization, word: str) -> str:
    """The macro for a constant whose words are had by the C expression `word`, with {} for the index."""
    rule = declared.rule
    low = word.format(rule.ordinal)
    if rule.words == 1:
        value = f"as_f32({low})" if rule.type == "f32" else f"({rule.type}){low}"
    else:
        high = word.format(rule.ordinal + 1)
        both = f"((u64){low} | (u64){high} << 32)"
        value = f"({rule.type}){both}" if rule.type[0] != "f" else f"as_f64({both})"
    return f"\n#define {rule.name} ({value})\n"


def run_compiler(command: Sequence[str], folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    """Run a compiler in `folder`. Raises UsageError with what it printed, or DeadlineError when it hangs."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeadlineError(f"{what}: {command[0]} did not end in {COMPILE_SECONDS:.0f} s; make the source smaller") from None
    except OSError as error:
        raise UsageError(f"{what}: {command[0]} cannot be run: {error}") from None
    if done.returncode:
        told = (done.stderr + done.stdout).strip()[:MAX_OUTPUT]
        raise UsageError(f"{what} did not compile; {Path(command[0]).name} ended with {done.returncode}:\n{told}")
    return done
