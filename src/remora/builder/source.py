"""Kernel sources: C with declarations that say what a kernel takes (D11).

    #include <remora.h>

    specialization u32 FACTOR;
    global u32 total[1] = {0};

    kernel scale(in u32 x[n], out u32 y[n], u32 n) elements(16384) workgroup(256) {
      FOR_ELEMENTS(i, n) y[i] = FACTOR * x[i];
    }

A declaration begins at the start of a line and is read before the preprocessor, so none may stand inside #if. A parameter with an
access (`in`, `out`, `inout`) and an extent is a binding, any other a constant. An extent is a sum of products of numbers, of names
that are #defined as numbers, and of one integer constant of the kernel. `aligned(64)` behind an extent asks for more than the
alignment of an element.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from remora.builder.extent import Extent, number, parse_extent
from remora.errors import NotFoundError, UsageError
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, ConstantRule, Grid, GridRule, KernelInfo
from remora.hal.specialization import CONSTANT_CODES, ExecutableInfo, GlobalRule, SpecializationRule

__all__ = ["ELEMENT_BYTES", "Declaration", "GlobalMemory", "KernelDeclaration", "Source", "Specialization", "read_source"]

#: Element types of bindings and globals, with their bytes. Constants have those of CONSTANT_CODES.
ELEMENT_BYTES = {"i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8, "u64": 8, "f64": 8}
ACCESS = {"in": Access.READ, "out": Access.WRITE, "inout": Access.READ_WRITE}
MAX_SOURCE_BYTES = 4 << 20
MAX_INCLUDES = 64

_BEGIN = re.compile(r"^(kernel|specialization|global)\s", re.MULTILINE)
_KERNEL = re.compile(r"kernel\s+([A-Za-z_]\w*)\s*")
_BINDING = re.compile(r"(in|out|inout)\s+(\w+)\s+([A-Za-z_]\w*)\s*\[([^\]]*)\]\s*(?:aligned\s*\(\s*(\w+)\s*\))?")
_CONSTANT = re.compile(r"(\w+)\s+([A-Za-z_]\w*)")
_CLAUSE = re.compile(r"\s*(elements|workgroup|grid)\s*\(([^)]*)\)")
_SPECIALIZATION = re.compile(r"specialization\s+(\w+)\s+([A-Za-z_]\w*)\s*(?:=\s*([^;]+?)\s*)?;")
_GLOBAL = re.compile(r"global\s+(\w+)\s+([A-Za-z_]\w*)\s*\[([^\]]*)\]\s*(?:=\s*(\{[^;]*\})\s*)?;")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)[ \t]+([0-9]\w*)[uUlL]*[ \t]*$", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+\"([^\"]+)\"[^\n]*$", re.MULTILINE)
_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A place in a source's text: from `begin` to `end`, which starts at line `line` of `file`; `lines` is how many it spans."""

    begin: int
    end: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class KernelDeclaration:
    """A kernel: its contract, and the element types of its bindings in order. The declaration ends behind the opening brace."""

    place: Declaration
    info: KernelInfo
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Specialization:
    """A specialization constant and where it was declared."""

    place: Declaration
    rule: SpecializationRule


@dataclass(frozen=True, slots=True)
class GlobalMemory:
    """A named global: `count` elements of `type`, with the C initializer (empty for zeros)."""

    place: Declaration
    rule: GlobalRule
    type: str
    count: int
    initial: str


@dataclass(frozen=True, slots=True)
class Source:
    """A source that was read: its text with the files it includes, and what it declares. `files` are all of them, by name."""

    name: str
    text: str
    kernels: tuple[KernelDeclaration, ...]
    specializations: tuple[Specialization, ...]
    globals: tuple[GlobalMemory, ...]
    files: dict[str, bytes]

    @property
    def info(self) -> ExecutableInfo:
        """The contracts, as the manifest has them."""
        return ExecutableInfo(
            tuple(kernel.info for kernel in self.kernels),
            tuple(each.rule for each in self.specializations),
            tuple(each.rule for each in self.globals),
        )

    @property
    def words(self) -> int:
        """32-bit words in the table of specialization constants."""
        return self.info.words


def read_source(path: Path) -> Source:
    """Read a kernel source. Raises NotFoundError when it is not there, UsageError with file and line when it is wrong."""
    files: dict[str, bytes] = {}
    text = _flatten(path, path.name, files)
    return _Reader(path.stem, text, files).read()


def _flatten(path: Path, name: str, files: dict[str, bytes]) -> str:
    """The text with its quoted includes in place, and #line directives that say where each part comes from."""
    if "/" in name or name.startswith("."):
        raise UsageError(f"{path}: includes lie in the folder of the source, with plain names; #include {name!r} does not")
    if not path.is_file():
        raise NotFoundError(f"there is no source {path}; give a C file with kernel declarations")
    content = path.read_bytes()
    if len(content) > MAX_SOURCE_BYTES or len(files) >= MAX_INCLUDES:
        raise UsageError(f"{path}: a source has at most {MAX_SOURCE_BYTES} bytes a file and {MAX_INCLUDES} files")
    files[name] = content
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no UTF-8 text ({error}); give a C source") from None
    parts, at = [f'#line 1 "{name}"\n'], 0
    for match in _INCLUDE.finditer(text):
        parts.append(text[at : match.start()])
        inner, at = match[1], match.end()
        if inner not in files:
            parts.append(_flatten(path.parent / inner, inner, files))
        parts.append(f'\n#line {text.count(chr(10), 0, at) + 2} "{name}"')
    parts.append(text[at:])
    return "".join(parts)


class _Reader:
    """Finds the declarations in a text."""

    def __init__(self, name: str, text: str, files: dict[str, bytes]) -> None:
        self.name, self.text, self.files = name, text, files
        #: The same length, with comments and literals blanked: what is searched for declarations.
        self.bare = _SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        self.macros = {match[1]: number(match[2]) for match in _DEFINE.finditer(self.bare)}

    def read(self) -> Source:
        """All declarations, checked."""
        kernels: list[KernelDeclaration] = []
        specializations: list[Specialization] = []
        owned: list[GlobalMemory] = []
        for match in _BEGIN.finditer(self.bare):
            if match[1] == "kernel":
                kernels.append(self.kernel(match.start()))
            elif match[1] == "specialization":
                specializations.append(self.specialization(match.start(), sum(each.rule.words for each in specializations)))
            else:
                owned.append(self.memory(match.start()))
        if not kernels:
            raise UsageError(f"{self.name}: there is no kernel; declare one: kernel NAME(in f32 x[n], u32 n) {{ ... }}")
        names = (
            [each.info.name for each in kernels] + [each.rule.name for each in specializations] + [each.rule.name for each in owned]
        )
        if twice := next((name for index, name in enumerate(names) if name in names[:index]), None):
            raise UsageError(f"{self.name}: {twice} is declared twice")
        return Source(self.name, self.text, tuple(kernels), tuple(specializations), tuple(owned), self.files)

    def place(self, begin: int, end: int) -> Declaration:
        """Where a piece of the text comes from."""
        before = self.text[:begin]
        marks = list(re.finditer(r'^#line (\d+) "([^"]+)"$', before, re.MULTILINE))
        mark = marks[-1]
        return Declaration(begin, end, mark[2], int(mark[1]) + before.count("\n", mark.end()) - 1)

    def wrong(self, at: int, what: str) -> UsageError:
        """The error that says where something is wrong."""
        place = self.place(at, at)
        return UsageError(f"{place.file}:{place.line}: {what}")

    def kernel(self, begin: int) -> KernelDeclaration:
        """`kernel NAME(parameters) clauses {`."""
        head = _KERNEL.match(self.bare, begin)
        opening = head.end() if head else -1
        if head is None or self.bare[opening : opening + 1] != "(":
            raise self.wrong(begin, "a kernel is declared as: kernel NAME(in f32 x[n], out f32 y[n], u32 n) elements(1024) {")
        closing = self._closing(opening)
        brace = self.bare.find("{", closing)
        clauses = self._clauses(begin, self.bare[closing + 1 : brace if brace >= 0 else None])
        info, types = self._parameters(begin, head[1], self.bare[opening + 1 : closing])
        elements, fixed = clauses.get("elements", (1, 1, 1)), clauses.get("grid")
        info = replace(info, workgroup=clauses.get("workgroup", (1, 1, 1)), grid=GridRule(elements, fixed))
        return KernelDeclaration(self.place(begin, brace + 1), info, types)

    def _closing(self, opening: int) -> int:
        depth = 0
        for at in range(opening, len(self.bare)):
            depth += {"(": 1, ")": -1}.get(self.bare[at], 0)
            if not depth:
                return at
        raise self.wrong(opening, "the parameter list is not closed")

    def _clauses(self, begin: int, text: str) -> dict[str, Grid]:
        found: dict[str, Grid] = {}
        at = 0
        while match := _CLAUSE.match(text, at):
            values = [self._number(begin, part) for part in match[2].split(",")]
            if not 1 <= len(values) <= 3 or min(values) < 1:
                raise self.wrong(begin, f"{match[1]} takes one to three numbers from 1 on, not ({match[2]})")
            found[match[1]] = ((*values, 1, 1)[0], (*values, 1, 1)[1], (*values, 1, 1)[2])
            at = match.end()
        if rest := text[at:].strip():
            raise self.wrong(begin, f"{rest.split()[0]!r} is unknown here; known: elements(...), workgroup(...), grid(...), {{")
        return found

    def _number(self, begin: int, text: str) -> int:
        extent = self._extent(begin, text, {})
        return extent.fixed

    def _extent(self, begin: int, text: str, constants: dict[str, str]) -> Extent:
        try:
            return parse_extent(text, self.macros, constants)
        except UsageError as error:
            raise self.wrong(begin, error.message) from None

    def _parameters(self, begin: int, name: str, text: str) -> tuple[KernelInfo, tuple[str, ...]]:
        parts = [part.strip() for part in _split(text)]
        if parts in ([""], ["void"]):
            parts = []
        kinds: dict[str, str] = {}
        for part in parts:
            if (match := _CONSTANT.fullmatch(part)) and match[1] in CONSTANT_CODES:
                kinds[match[2]] = match[1]
        bindings, types = [], []
        for part in parts:
            if match := _BINDING.fullmatch(part):
                bindings.append(self._binding(begin, match, kinds))
                types.append(match[2])
            elif not ((found := _CONSTANT.fullmatch(part)) and found[2] in kinds):
                known = f"a constant is one of {', '.join(CONSTANT_CODES)} and a name, a binding such as: in f32 x[n]"
                raise self.wrong(begin, f"{name}: {part!r} is no parameter; {known}")
        if len({rule.name for rule in bindings} | kinds.keys()) != len(parts):
            raise self.wrong(begin, f"{name}: two parameters have one name")
        constants = tuple(ConstantRule(each, kind) for each, kind in kinds.items())
        return KernelInfo(name, tuple(bindings), constants, export=name), tuple(types)

    def _binding(self, begin: int, match: re.Match[str], kinds: dict[str, str]) -> BindingRule:
        size = self._size(begin, match[2])
        extent = self._extent(begin, match[4], kinds)
        alignment = max(size, self._number(begin, match[5]) if match[5] else 1)
        if alignment & (alignment - 1):
            raise self.wrong(begin, f"{match[3]}: an alignment is a power of two, not {alignment}")
        return BindingRule(match[3], ACCESS[match[1]], extent.fixed * size, extent.constant, extent.scale * size, alignment)

    def _size(self, begin: int, kind: str) -> int:
        if kind not in ELEMENT_BYTES:
            raise self.wrong(begin, f"{kind!r} is no element type; known: {', '.join(ELEMENT_BYTES)}")
        return ELEMENT_BYTES[kind]

    def specialization(self, begin: int, ordinal: int) -> Specialization:
        """`specialization TYPE NAME;` or `... = VALUE;`."""
        match = _SPECIALIZATION.match(self.bare, begin)
        if match is None or match[1] not in CONSTANT_CODES:
            raise self.wrong(begin, f"declare it as: specialization TYPE NAME = VALUE; with a type of {', '.join(CONSTANT_CODES)}")
        rule = SpecializationRule(match[2], match[1], ordinal)
        if match[3]:
            try:
                value = float(match[3].rstrip("f")) if match[1][0] == "f" else number(match[3])
                rule.pack(value)
            except (ValueError, UsageError):
                raise self.wrong(begin, f"{match[2]}: the default {match[3]} is no {match[1]}") from None
            rule = replace(rule, default=value)
        return Specialization(self.place(begin, match.end()), rule)

    def memory(self, begin: int) -> GlobalMemory:
        """`global TYPE NAME[COUNT] = {...};`."""
        match = _GLOBAL.match(self.bare, begin)
        if match is None:
            raise self.wrong(begin, "declare it as: global TYPE NAME[COUNT]; or with = {values};")
        size, count = self._size(begin, match[1]), self._number(begin, match[3])
        rule = GlobalRule(match[2], size * count, match[2])
        return GlobalMemory(self.place(begin, match.end()), rule, match[1], count, match[4] or "")


def _split(text: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
