"""Builds the Vulkan artifacts of the sample bundles from glsl/: `python kernels/spirv.py [name ...]`.

README.md says which tools it takes and how to get them. A bundle keeps its other artifacts as they are. `build.py` takes the
compiled modules from spirv/, so whoever rebuilds the other artifacts needs none of these tools.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parent / "src" / "remora" / "samples"
sys.path.insert(0, str(HERE.parent / "src"))

from remora.hal.bundle import Bundle  # noqa: E402 the repository's own package, installed or not
from remora.hal.target import Target  # noqa: E402

TARGET = Target("vulkan", "spirv1.3+bda")
OPENCL = Target("opencl", "c1.2")
#: Entry points by bundle, in the order that the module has them. `remora_initialize` is run by the driver when the code is loaded.
ENTRIES = {
    "vector": ("add_i32", "mix_u32", "empty", "fill_index", "saxpy_f32"),
    "matmul": ("matmul",),
    "faults": ("fail", "crash_segv", "crash_abort", "spin"),
    "special": ("reveal", "affine_u32", "tally", "look_up", "remora_initialize"),
}


def tool(name: str) -> str:
    """A tool beside this Python, or on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        sys.exit(f"{name} is missing: pip install -r kernels/requirements.txt, or apt-get install glslang-tools spirv-tools")
    return found


def compile_glsl(name: str) -> bytes:
    """One module with all entry points of a bundle: each is compiled by itself, and the linker joins them."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder, f"{entry}.spv") for entry in ENTRIES[name]]
        for entry, part in zip(ENTRIES[name], parts, strict=True):
            command = [tool("glslangValidator"), "-V", "--quiet", "--target-env", "vulkan1.1", f"-DKERNEL_{entry}"]
            command += ["-e", entry, "--source-entrypoint", "main", f"{name}.comp", "-o", str(part)]
            subprocess.run(command, cwd=HERE / "glsl", check=True)
        whole = Path(folder, "whole.spv")
        subprocess.run([tool("spirv-link"), "--target-env", "vulkan1.1", *map(str, parts), "-o", str(whole)], check=True)
        subprocess.run([tool("spirv-val"), "--target-env", "vulkan1.1", str(whole)], check=True)
        return whole.read_bytes()


def put_into_bundle(name: str) -> None:
    """Replace a bundle's Vulkan artifact; the rest of it stays. What OpenCL has otherwise than the bundle says, Vulkan has too."""
    path = SAMPLES / f"{name}.rbundle"
    old = Bundle.load(path)
    artifacts = {target: old.artifact(target) for target in old.targets}
    artifacts[TARGET] = (HERE / "spirv" / f"{name}.spv").read_bytes()
    variants = {target: member.variants for target, member in old._artifacts.items()}
    variants[TARGET] = variants[OPENCL]
    new = Bundle.from_parts(old.name, old.info, artifacts, {file: old.source(file) for file in old.sources}, variants)
    new.save(path)
    print(f"{path.relative_to(HERE.parent)}: {path.stat().st_size:,} bytes, digest {new.digest[:16]}")


def main() -> None:
    """Build the modules named on the command line, or all, and put them into their bundles."""
    parser = argparse.ArgumentParser(description="Build the Vulkan artifacts of the sample bundles.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which of {', '.join(ENTRIES)}; all if none is given")
    parser.add_argument("--pack", action="store_true", help="compile nothing: put what is in spirv/ into the bundles")
    options = parser.parse_args()
    for name in options.names or ENTRIES:
        if name not in ENTRIES:
            sys.exit(f"there is no recipe for {name}; there are {', '.join(ENTRIES)}")
        if not options.pack:
            (HERE / "spirv" / f"{name}.spv").write_bytes(compile_glsl(name))
        put_into_bundle(name)


if __name__ == "__main__":
    main()
