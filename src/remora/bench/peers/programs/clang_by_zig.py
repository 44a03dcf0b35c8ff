"""Stands in for `clang -c -x c ... - -o -`: the compiler inside the ziglang wheel, which does not write objects to a pipe."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

#: Words that say where source and object are, and what it is for.
OURS = ("-", "-o", "-c", "-x", "c")


def main(words: list[str]) -> int:
    """Compile standard input to standard output; the compiler's exit code."""
    flags = [word for word in words if word not in OURS and not word.startswith("--target")]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.c", Path(folder) / "target.o"
        source.write_bytes(sys.stdin.buffer.read())
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-freestanding-none", *flags]
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(Path(tempfile.gettempdir()) / "zig"))
        done = subprocess.run([*command, "-c", str(source), "-o", str(target)], env={**os.environ, **caches}, stdout=2, check=False)
        if done.returncode == 0:
            sys.stdout.buffer.write(target.read_bytes())
        return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
