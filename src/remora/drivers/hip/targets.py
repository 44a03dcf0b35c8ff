"""Which code objects a GPU takes (requirement H19).

A processor is named `gfx90a`. Some have features that are on or off for the whole machine: a GPU calls itself
`gfx90a:sramecc+:xnack-`, in this order. Code is compiled for one setting (`gfx90a:xnack-`) or for any (`gfx90a`), so a GPU takes
its own full name and every shorter one. No processor takes another's code.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Final, NamedTuple

from remora.errors import UsageError
from remora.hal.target import Target

__all__ = ["PROCESSORS", "Processor", "arch_name", "parse_processor", "processor_of", "targets"]

#: The machine number of an ELF file's flags -> processor. From LLVM's AMDGPU back end.
PROCESSORS: Final = {
    0x2C: "gfx900", 0x2D: "gfx902", 0x2E: "gfx904", 0x2F: "gfx906", 0x30: "gfx908", 0x31: "gfx909", 0x32: "gfx90c",
    0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012", 0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033",
    0x3D: "gfx1035", 0x3E: "gfx1034", 0x3F: "gfx90a", 0x40: "gfx940", 0x41: "gfx1100", 0x42: "gfx1013", 0x43: "gfx1150",
    0x44: "gfx1103", 0x45: "gfx1036", 0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200", 0x4A: "gfx1151", 0x4B: "gfx941",
    0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950",
}  # fmt: skip
MACHINE_MASK: Final = 0xFF
#: Feature -> how far its two bits are shifted in the flags: 0 and 1 stand for any setting, 2 for off, 3 for on.
FEATURES: Final = {"sramecc": 10, "xnack": 8}
SIGNS: Final = {2: "-", 3: "+"}
_NAME: Final = re.compile(r"(gfx[0-9a-f]{3,5})((?::[a-z]+[+-])*)")
_ARCH: Final = re.compile(rb"(gfx[0-9a-f]{3,5}(?::[a-z]+[+-])*)\0")


class Processor(NamedTuple):
    """`gfx90a:sramecc+:xnack-`: a name, and the features that are set, each with its sign."""

    name: str
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join((self.name, *self.features))

    def takes(self, code: Processor) -> bool:
        """Whether this GPU runs that code."""
        return code.name == self.name and set(code.features) <= set(self.features)


def parse_processor(text: str) -> Processor:
    """The name of a GPU or a target's key. Raises UsageError."""
    found = _NAME.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no AMD processor; write a name such as gfx90a, gfx1100 or gfx90a:xnack-")
    return Processor(found[1], tuple(sorted(found[2].split(":")[1:])))


def processor_of(flags: int) -> Processor:
    """What the flags of a code object say that it is for. Raises UsageError for processors that are not known here."""
    name = PROCESSORS.get(flags & MACHINE_MASK)
    if name is None:
        raise UsageError(
            f"the code object is for the AMD processor number {flags & MACHINE_MASK:#x}, which this driver does not know: "
            "build it for one processor by name, such as gfx90a or gfx1100"
        )
    set_to = ((feature, SIGNS.get(flags >> shift & 3)) for feature, shift in FEATURES.items())
    return Processor(name, tuple(feature + sign for feature, sign in set_to if sign))


def arch_name(properties: bytes) -> Processor | None:
    """The GPU's name in the properties that the runtime gives, or None.

    Their layout is another in each major version of ROCm, and the same symbol gives the old or the new one. The name is the last
    text in them that looks like a processor's and ends with NUL, wherever it lies: before it stands only the product's name.
    """
    found = _ARCH.findall(properties)
    return parse_processor(found[-1].decode()) if found else None


def targets(processor: Processor) -> tuple[Target, ...]:
    """What it takes in order of preference: code for most of its features first."""
    features = processor.features
    chosen = [some for count in range(len(features), -1, -1) for some in combinations(features, count)]
    return tuple(Target("amdgpu", str(Processor(processor.name, some))) for some in chosen)
