"""An artifact: OpenCL C source text, what it uses and declares beside its kernels, and what stands before it when it is compiled.

REMORA_WORD_0                       a 32-bit word of the specialization constants; each is defined as a macro
#pragma remora global total 4       memory of the program's own: name and bytes
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remora.errors import UsageError
from remora.hal.manifest import MAX_GLOBAL_BYTES, MAX_GLOBALS, MAX_WORDS

__all__ = ["Declared", "defines", "read_source"]

#: More text than this is no kernel source.
MAX_SOURCE_BYTES = 16 << 20
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+remora[ \t]+([^\n]*)", re.MULTILINE)
_WORD = re.compile(r"\bREMORA_WORD_(\d{1,9})\b")
_GLOBAL = re.compile(r"global[ \t]+([A-Za-z_]\w{0,127})[ \t]+(\d{1,10})")


@dataclass(frozen=True, slots=True)
class Declared:
    """The text, how many words of specialization constants it uses, and the bytes of each global."""

    text: str
    words: int
    globals: Mapping[str, int]


def read_source(artifact: memoryview) -> Declared:
    """Read an artifact. Raises UsageError when it is no OpenCL C text, or declares what cannot be."""
    if artifact.nbytes > MAX_SOURCE_BYTES:
        raise UsageError(f"the artifact has {artifact.nbytes:,} bytes; OpenCL C source of up to {MAX_SOURCE_BYTES:,} is taken here")
    try:
        text = bytes(artifact).decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or not text.strip():
        raise UsageError("the artifact is no OpenCL C source: build it for opencl, as UTF-8 text")
    words = max((int(number) + 1 for number in _WORD.findall(text)), default=0)
    if words > MAX_WORDS:
        raise UsageError(f"the artifact uses REMORA_WORD_{words - 1}; there are {MAX_WORDS} words at most")
    globals_ = dict(map(_global, _PRAGMA.findall(text)))
    if len(globals_) > MAX_GLOBALS:
        raise UsageError(f"the artifact declares {len(globals_)} globals, the most is {MAX_GLOBALS}")
    return Declared(text, words, globals_)


def _global(pragma: str) -> tuple[str, int]:
    found = _GLOBAL.fullmatch(pragma.rstrip())
    if found is None or not 0 < int(found[2]) <= MAX_GLOBAL_BYTES:
        raise UsageError(
            f"the artifact has '#pragma remora {pragma.rstrip()[:80]}'; it would be 'global NAME BYTES', 1 to {MAX_GLOBAL_BYTES}"
        )
    return found[1], int(found[2])


def defines(words: Sequence[int]) -> str:
    """Specialization constants as macros, to stand before the text."""
    return "".join([*(f"#define REMORA_WORD_{index} {word}u\n" for index, word in enumerate(words)), "#line 1\n"])
