"""Which clang there is, and what it can do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Clang", "find_clang"]

#: Names under which distributions install clang, best first.
NAMES = ("clang", *(f"clang-{major}" for major in range(24, 13, -1)))
_MAJOR = re.compile(r"clang version ([0-9]+)")
SECONDS = 10.0


class Clang(NamedTuple):
    """A clang: its path, its major version, and whether it has a linker of its own (lld)."""

    path: str
    major: int
    links: bool

    def __str__(self) -> str:
        return f"clang {self.major}"


def find_clang(least: int = 0, *, links: bool = False) -> Clang | None:
    """The first clang of this major version or a newer one; with `links`, one that finds ld.lld. None when there is none."""
    return _find(os.environ.get("PATH", ""), least, links)


@cache
def _find(places: str, least: int, links: bool) -> Clang | None:
    for path in (found for name in NAMES if (found := shutil.which(name, path=places))):
        clang = _ask(path)
        if clang is not None and clang.major >= least and (clang.links or not links):
            return clang
    return None


def _ask(path: str) -> Clang | None:
    told = _output(path, "--version")
    major = _MAJOR.search(told)
    if major is None:
        return None
    linker = Path(_output(path, "--print-prog-name=ld.lld").strip() or "ld.lld")
    return Clang(path, int(major[1]), linker.is_absolute() and linker.exists())


def _output(path: str, option: str) -> str:
    try:
        return subprocess.run([path, option], capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
