"""The sample bundles (D11, H19): their contracts hold for every artifact, and the ones for this machine compute the right thing."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from remora import samples
from remora.builder.build import FAMILIES
from remora.builder.source import read_source
from remora.drivers.vulkan.spirv import parse_module
from remora.errors import NotFoundError
from remora.hal.executable import GridRule, Kernel
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target, parse_target

TARGETS = (Target("cpu", "aarch64"), Target("cpu", "x86_64"), Target("cpu", "x86_64-v3"))
VULKAN = Target("vulkan", "spirv1.3+bda")
ELF_MACHINES = {"aarch64": 183, "x86_64": 62, "x86_64-v3": 62}
#: How an artifact begins: ELF with its OS/ABI, SPIR-V, text. By family and whether it is PTX.
BEGINNINGS = {
    ("cpu", False): b"\x7fELF\x02\x01\x01",
    ("opencl", False): b"#line 1",
    ("cuda", False): b"\x7fELF\x02\x01\x01",
    ("cuda", True): b"\n.version 7.8",
    ("amdgpu", False): b"\x7fELF\x02\x01\x01\x40\x03",
    ("vulkan", False): b"\x03\x02\x23\x07",
}
QUERY = b"iree_hal_executable_library_query"


def runnable():
    """The targets whose code this machine runs."""
    if platform.machine() == "aarch64":
        return ["cpu:aarch64"]
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
    flags = set(next(line for line in lines if line.startswith("flags")).split())
    return ["cpu:x86_64", "cpu:x86_64-v3"] if {"avx2", "fma", "bmi2", "f16c", "movbe"} <= flags else ["cpu:x86_64"]


class Library:
    """An artifact loaded by dlopen, its structures read by the offsets of the ABI, version 0.6."""

    def __init__(self, path):
        query = ctypes.CDLL(str(path))[QUERY.decode()]
        query.restype, query.argtypes = ctypes.c_void_p, [ctypes.c_uint32, ctypes.c_void_p]
        self.environment = ctypes.create_string_buffer(96)
        self.refuses_older = query(5, self.environment) is None
        table = query(6, self.environment)
        (header,) = self.words(table, "Q")
        (self.version,) = self.words(header, "I")
        count, functions, attributes, _, _, names = self.words(table + 24, "IxxxxQQQQQ")
        self.names = [ctypes.string_at(name).decode() for name in self.words(names, f"{count}Q")]
        self.counts = [self.words(attributes + 64 * index + 10, "BB") for index in range(count)]
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.functions = [kind(address) for address in self.words(functions, f"{count}Q")]

    @staticmethod
    def words(address, form):
        return struct.unpack(form, ctypes.string_at(address, struct.calcsize(form)))

    def run(self, kernel, grid, arrays=(), constants=()):
        """Run all workgroups, one after the other. Returns the first code that is not 0, or 0."""
        packed = ctypes.create_string_buffer(kernel.pack(constants) or b"\0")
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        lengths = (ctypes.c_uint64 * len(arrays))(*(array.nbytes for array in arrays))
        counts = (kernel.constant_bytes // 4, *grid, 1, len(arrays))
        addresses = (ctypes.addressof(packed), ctypes.addressof(pointers), ctypes.addressof(lengths))
        dispatch = ctypes.create_string_buffer(struct.pack("<IIHHIIHBBQQQ", 1, 1, 1, *counts, *addresses))
        function = self.functions[self.names.index(kernel.info.export)]
        for x in range(grid[0]):
            code = function(
                self.environment, dispatch, ctypes.create_string_buffer(struct.pack("<IIHHIQIxxxx", x, 0, 0, 0, 0, 0, 0))
            )
            if code:
                return code
        return 0


@pytest.fixture(params=runnable())
def library(request, tmp_path):
    """`library(name)` gives the loaded artifact and its kernels by name."""

    def load(name):
        bundle = samples.load(name)
        path = tmp_path / f"{name}.so"
        path.write_bytes(bundle.artifact(parse_target(request.param)))
        return Library(path), {info.name: Kernel(None, index, info) for index, info in enumerate(bundle.kernels)}

    return load


def aligned(count, dtype):
    """Zeros at a multiple of 64 bytes, as devices allocate them."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 64, "u1")
    start = -raw.ctypes.data % 64
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def test_the_names():
    assert samples.names() == ("faults", "matmul", "special", "vector")
    with pytest.raises(NotFoundError, match="no sample 'conv'; there are faults, matmul, special, vector"):
        samples.load("conv")


@pytest.mark.parametrize("name", samples.names())
def test_h19_every_bundle_has_three_small_libraries_and_its_source(name):
    bundle = samples.load(name)
    assert bundle.name == name
    assert tuple(target for target in bundle.targets if target.family == "cpu") == TARGETS
    for target in TARGETS:
        artifact = bundle.artifact(target)
        assert artifact[:5] == b"\x7fELF\x02"
        kind, machine = struct.unpack_from("<HH", artifact, 16)
        assert (kind, machine) == (3, ELF_MACHINES[target.key])
        assert QUERY in artifact
        assert all(info.export.encode() + b"\0" in artifact for info in bundle.kernels)
        assert len(artifact) < 1 << 15
    module = bundle.artifact(VULKAN)
    assert module == (REPOSITORY / "kernels/spirv" / f"{name}.spv").read_bytes(), f"rebuild: python kernels/spirv.py {name}"
    entries = {entry.name: entry.workgroup for entry in parse_module(memoryview(module)).entries}
    assert all(entries[info.export] == info.workgroup for info in bundle.info_for(VULKAN).kernels)
    assert bundle.sources
    assert all(bundle.source(file) for file in bundle.sources)


@pytest.mark.parametrize("name", samples.names())
def test_d11_every_bundle_has_an_artifact_for_each_target_that_has_a_recipe(name):
    bundle = samples.load(name)
    wanted = {target for family in FAMILIES.values() for target in family.targets}
    assert wanted <= set(bundle.targets)
    for target in bundle.targets:
        artifact = bundle.artifact(target)
        assert artifact.startswith(BEGINNINGS[target.family, target.key.startswith("ptx")]), target
        if target.family != "vulkan":
            exports = [info.export.encode() for info in bundle.info_for(target).kernels]
            assert all(export in artifact for export in exports), target


@pytest.mark.parametrize("name", samples.names())
def test_h19_the_manifest_says_what_the_library_exports(library, name):
    loaded, kernels = library(name)
    assert loaded.version == 6
    assert loaded.refuses_older
    assert loaded.names == [kernel.info.export for kernel in kernels.values()]
    assert loaded.counts == [(kernel.constant_bytes // 4, len(kernel.info.bindings)) for kernel in kernels.values()]


@pytest.mark.parametrize("n", [0, 1, 16383, 16384, 16385, 100_000])
def test_integer_kernels_equal_numpy(library, n):
    loaded, kernels = library("vector")
    rng = np.random.default_rng(n)
    a, b = (rng.integers(0, 1 << 32, n + 1, dtype="u4") for _ in range(2))
    out = np.full(n + 1, 0xABCD, "u4")

    def run(name, *arrays_and_constants):
        *arrays, constants = arrays_and_constants
        out[:] = 0xABCD
        assert loaded.run(kernels[name], kernels[name].grid_for(n), arrays, constants) == 0
        assert out[n] == 0xABCD  # nothing behind the last element

    run("add_i32", a, b, out, (n,))
    assert np.array_equal(out[:n], a[:n] + b[:n])
    run("mix_u32", a, out, (n, 3))
    assert np.array_equal(out[:n], mixed(a[:n], 3))
    run("fill_index", out, (n, 0xFFFFFFF0))
    assert np.array_equal(out[:n], np.arange(n, dtype="u4") + np.uint32(0xFFFFFFF0))
    run("empty", ())


def mixed(values, rounds):
    values = values.copy()
    for _ in range(rounds):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            values ^= values >> np.uint32(shift)
            values *= np.uint32(factor)
        values ^= values >> np.uint32(16)
    return values


def test_saxpy_rounds_as_numpy_does(library):
    loaded, kernels = library("vector")
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(50_000).astype("f4") for _ in range(2))
    expected = np.float32(0.1) * x + y
    assert loaded.run(kernels["saxpy_f32"], kernels["saxpy_f32"].grid_for(50_000), (x, y), (50_000, 0.1)) == 0
    assert np.array_equal(y, expected)


def test_matmul_multiplies_matrices(library):
    loaded, kernels = library("matmul")
    kernel = kernels["matmul"]
    a, b, c = (aligned(512 * 512, "f4") for _ in range(3))
    rng = np.random.default_rng(2)
    a[:], b[:] = rng.standard_normal((2, 512 * 512))
    c[:] = np.nan
    assert loaded.run(kernel, kernel.grid_for(), (a, b, c)) == 0
    expected = a.reshape(512, 512).astype("f8") @ b.reshape(512, 512).astype("f8")
    np.testing.assert_allclose(c.reshape(512, 512), expected, rtol=0, atol=1e-3)
    # Whole numbers small enough for float32 have no rounding: the result is exact.
    a[:], b[:] = rng.integers(-8, 9, (2, 512 * 512))
    loaded.run(kernel, kernel.grid_for(), (a, b, c))
    assert np.array_equal(c.reshape(512, 512), a.reshape(512, 512) @ b.reshape(512, 512))


@pytest.mark.parametrize("code", [0, 1, -1, 77])
def test_the_failing_kernel_returns_its_code(library, code):
    loaded, kernels = library("faults")
    assert loaded.run(kernels["fail"], (1, 1, 1), (), (code,)) == code


DIE = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.path.insert(0, sys.argv[1])
from test_samples import Library, samples, Kernel
infos = {info.name: info for info in samples.load("faults").kernels}
print("begin", flush=True)
Library(sys.argv[2]).run(Kernel(None, 0, infos[sys.argv[3]]), (1, 1, 1))
print("end", flush=True)
"""


@pytest.fixture
def start_fault(tmp_path):
    """`start_fault(kernel)` runs it in a process of its own, for every target of this machine."""
    children = []

    def start(kernel):
        for text in runnable():
            path = tmp_path / f"{text[4:]}.so"
            path.write_bytes(samples.load("faults").artifact(parse_target(text)))
            command = [sys.executable, "-c", DIE, str(Path(__file__).parent), str(path), kernel]
            children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            yield children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait(20)
        child.stdout.close()


@pytest.mark.parametrize(("kernel", "number"), [("crash_segv", signal.SIGSEGV), ("crash_abort", signal.SIGABRT)])
def test_h26_the_crashing_kernels_end_their_process_with_their_signal(start_fault, kernel, number):
    for child in start_fault(kernel):
        assert child.communicate(timeout=30)[0] == "begin\n"
        assert child.returncode == -number


def test_h26_the_endless_kernel_ends_when_it_is_killed(start_fault):
    for child in start_fault("spin"):
        assert child.stdout.readline() == "begin\n"
        assert child.poll() is None
        child.kill()
        assert child.wait(20) == -signal.SIGKILL
        assert child.stdout.read() == ""


REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recipe():
    """kernels/build.py as a module; importing it builds nothing."""
    spec = importlib.util.spec_from_file_location("kernels_build", REPOSITORY / "kernels/build.py")
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.mark.parametrize("name", samples.names())
def test_d11_the_bundles_are_what_the_sources_say(recipe, name):
    bundle = samples.load(name)
    read = read_source(REPOSITORY / f"kernels/{name}.c")
    if name == "matmul":
        assert bundle.info == ExecutableInfo((recipe.MATMUL,))
        for target in bundle.targets:
            if target.family != "cpu":
                assert bundle.info_for(target) == read.info
    else:
        assert bundle.info == read.info
    for file in bundle.sources:
        assert bundle.source(file) == (REPOSITORY / "kernels" / file).read_bytes(), f"rebuild: python kernels/build.py {name}"


def test_the_recipe_stops_when_the_compiler_chose_another_grid(recipe):
    made = replace(recipe.MATMUL, name="anything", bindings=tuple(replace(rule, name="b") for rule in recipe.MATMUL.bindings))
    recipe.check_contract(made)
    with pytest.raises(SystemExit, match=r"the compiler made .*\(32, 1, 1\).*change MATMUL"):
        recipe.check_contract(replace(made, grid=GridRule(fixed=(32, 1, 1))))
