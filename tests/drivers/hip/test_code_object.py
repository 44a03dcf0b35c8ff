"""D05, H19: what the hip driver reads in code objects, which needs no GPU and no ROCm. The samples' bundles hold real ones."""

import random
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.run import change

from remora import samples
from remora.builder.build import build
from remora.builder.clang import find_clang
from remora.drivers.hip.code_object import Argument, read_code_object
from remora.drivers.hip.executable import check_processor
from remora.drivers.hip.msgpack import MAX_DEPTH, unpack
from remora.drivers.hip.targets import PROCESSORS, Processor, arch_name, parse_processor, processor_of, targets
from remora.errors import UsageError
from remora.hal.target import Target

KERNELS = Path(__file__).parents[3] / "kernels"
KEYS = ("gfx90a", "gfx1100")
CODE = {
    (name, key): samples.load(name).artifact(Target("amdgpu", key))
    for name in ("vector", "special", "matmul", "faults")
    for key in KEYS
}
VECTOR = CODE["vector", "gfx90a"]
CLANG = find_clang(19, links=True)
BUILT = "gfx900 gfx906:sramecc-:xnack+ gfx908 gfx90a:sramecc+:xnack- gfx942 gfx1030 gfx1100 gfx1101 gfx1102 gfx1200 gfx1201"
needs_clang = pytest.mark.skipif(CLANG is None, reason="needs clang with lld: apt-get install clang-19 lld-19")
#: Where an ELF header has the flags, the machine, the type, the ABI and its version.
FLAGS, MACHINE, KIND, ABI, ABI_VERSION = 48, 18, 16, 7, 8


def patched(place, value, code=VECTOR):
    """A code object with one number of its header changed."""
    return code[:place] + value + code[place + len(value) :]


# -- what it says -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "key"), CODE)
def test_h19_the_code_objects_of_the_samples_are_what_their_manifests_say(name, key):
    told, bundle = read_code_object(CODE[name, key]), samples.load(name)
    assert (str(told.processor), told.version) == (key, 5)
    info = bundle.info_for(Target("amdgpu", key))
    assert set(told.kernels) == {kernel.export or kernel.name for kernel in info.kernels}
    for kernel in info.kernels:
        code = told.kernels[kernel.export or kernel.name]
        kinds = [argument.kind for argument in code.arguments]
        assert kinds == ["global_buffer"] * len(kernel.bindings) + ["by_value"] * len(kernel.constants)
        assert code.workgroup == kernel.workgroup
        assert code.symbol == f"{code.name}.kd"


def test_h19_arguments_and_memory_have_their_sizes():
    saxpy = read_code_object(VECTOR).kernels["saxpy_f32"]
    addresses = (Argument(0, 8, "global_buffer"), Argument(8, 8, "global_buffer"))
    assert saxpy.arguments == (*addresses, Argument(16, 4, "by_value"), Argument(20, 4, "by_value"))
    assert (saxpy.argument_bytes, saxpy.most, saxpy.workgroup, saxpy.hidden) == (24, 256, (256, 1, 1), 0)
    assert read_code_object(CODE["special", "gfx1100"]).memory == {"remora_words": 20, "total": 4, "table": 64}


@needs_clang
def test_h19_a_code_object_that_is_built_now_is_read():
    bundle = build(KERNELS / "vector.c", ["amdgpu:gfx942"]).bundle
    told = read_code_object(bundle.artifact(Target("amdgpu", "gfx942")))
    assert str(told.processor) == "gfx942"
    assert "add_i32" in told.kernels


@needs_clang
@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("target", BUILT.split())
def test_h19_what_the_compiler_was_told_is_what_is_read(tmp_path, target, version):
    """Processors, features, versions, and hidden arguments of a kernel that asks for its grid."""
    body = "out[n] = (uint)big + *(constant uint *)__builtin_amdgcn_implicitarg_ptr();"
    (tmp_path / "k.cl").write_text(f"kernel void k(global uint *out, uint n, ulong big) {{ {body} }}")
    flags = ["-x", "cl", "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-nogpulib", f"-mcode-object-version={version}"]
    subprocess.run([CLANG.path, *flags, "-o", "k.hsaco", "k.cl"], cwd=tmp_path, check=True, timeout=50)
    told = read_code_object((tmp_path / "k.hsaco").read_bytes())
    assert (told.processor, told.version) == (parse_processor(target), version)
    kernel = told.kernels["k"]
    assert kernel.arguments == (Argument(0, 8, "global_buffer"), Argument(8, 4, "by_value"), Argument(16, 8, "by_value"))
    assert kernel.hidden > 0
    assert kernel.argument_bytes > 24
    assert kernel.workgroup == (0, 0, 0)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "0 bytes, starting with b''.* is no code object"),
        (b"\x7fELF", "is no code object"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + bytes(64), "bundle of clang, .*`clang-offload-bundler --unbundle`"),
        (b"CCOB" + bytes(64), "bundle of clang"),
        (patched(MACHINE, b"\x3e\0"), "for machine 62, not for an AMD GPU: choose another target"),
        (patched(4, b"\1"), "not for an AMD GPU"),
        (patched(KIND, b"\1\0"), "type 1, not linked: link it with `ld.lld -shared`"),
        (patched(ABI, b"\0"), "the system ABI 0, not HSA"),
        (patched(ABI_VERSION, b"\1"), "ABI number 1; .* -mcode-object-version=5"),
        (patched(FLAGS, b"\xff"), "processor number 0xff, which this driver does not know"),
        (VECTOR[:-1], "cut off before the end of its section headers"),
        (patched(32, struct.pack("<Q", 1 << 63)), "cut off before the end of its program headers"),
        (patched(60, b"\xff\xff"), "65535 section headers"),
        (VECTOR.replace(b"AMDGPU\0", b"AMDGPV\0"), "no metadata of its kernels"),
        (VECTOR.replace(b"add_i32.kd", b"add_i33.kd", 1), "describes add_i32 and has no symbol add_i3"),
        (VECTOR.replace(b".offset", b".offzet", 1), ".offset is None; build the bundle again"),
    ],
)
def test_h25_what_is_no_code_object_is_told_apart(data, told):
    with pytest.raises(UsageError, match=told):
        read_code_object(data)


@pytest.mark.parametrize(("name", "key"), CODE)
def test_h25_a_code_object_may_end_anywhere(name, key):
    code = CODE[name, key]
    for end in range(0, len(code), 61):
        with pytest.raises(UsageError):
            read_code_object(code[:end])


@pytest.mark.parametrize("seed", range(8))
def test_h25_changed_code_objects_are_read_or_refused(seed):
    """Whatever the bytes are, nothing but UsageError comes out, and the suite's timeout says that it ends."""
    dice, real = random.Random(seed), list(CODE.values())
    refused = 0
    for _ in range(250):
        data = bytearray(dice.choice(real))
        for _ in range(dice.randrange(1, 6)):
            change(data, dice, real)
        refused += not reads(bytes(data))
    assert refused > 0


@given(st.sampled_from(sorted(CODE)), st.integers(0, 1 << 14), st.binary(min_size=1, max_size=8))
def test_h25_a_few_bytes_anywhere_do_no_harm(which, at, new):
    code = CODE[which]
    reads(patched(at % len(code), new, code)[: len(code)])


@given(st.binary(max_size=200))
def test_h25_any_metadata_does_no_harm(data):
    start = VECTOR.index(b"AMDGPU\0") + 8
    reads(VECTOR[:start] + data + VECTOR[start + len(data) :])


def reads(data):
    try:
        read_code_object(data)
    except UsageError as error:
        assert ": " in error.message or "no code object" in error.message
        return False
    return True


def test_h25_headers_that_overlap_cost_no_time():
    """Every note segment is the whole file, and holds nothing but empty notes; so does the table of symbols."""
    count, size = 1000, 1 << 20
    body = bytearray(size)
    body[:64] = VECTOR[:64]
    struct.pack_into("<QQ", body, 32, 64, 0)
    struct.pack_into("<HHHHH", body, 54, 56, count, 64, 0, 0)
    for index in range(count):
        struct.pack_into("<IIQQQQQQ", body, 64 + 56 * index, 4, 0, 64 + 56 * count, 0, 0, size - 64 - 56 * count, 0, 4)
    assert not reads(bytes(body))


# -- MessagePack ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("00", 0), ("7f", 127), ("ff", -1), ("e0", -32), ("c0", None), ("c2", False), ("c3", True),
        ("cc80", 128), ("cd0100", 256), ("ce00010000", 1 << 16), ("cf0000000100000000", 1 << 32),
        ("d080", -128), ("d18000", -(1 << 15)), ("d2ffffffff", -1), ("d3ffffffffffffffff", -1),
        ("ca3f800000", 1.0), ("cb3ff0000000000000", 1.0),
        ("a161", "a"), ("d90161", "a"), ("da000161", "a"), ("db0000000161", "a"), ("c40161", b"a"), ("c5000161", b"a"),
        ("9201c0", [1, None]), ("dc000101", [1]), ("dd0000000101", [1]),
        ("81a16101", {"a": 1}), ("de0001a16101", {"a": 1}), ("df00000001a16101", {"a": 1}),
    ],
)  # fmt: skip
def test_h19_messagepack_values(data, value):
    assert unpack(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("", "1 bytes or more are to follow, 0 do"),
        ("ddffffffff", "4294967295 bytes or more are to follow, 0 do"),
        ("dfffffffff", "8589934590 bytes"),
        ("dbffffffff61", "4294967295 bytes"),
        ("810102", "a name is int, not text"),
        ("c1", "the type 0xc1 does not occur"),
        ("d40100", "the type 0xd4 does not occur"),
        ("91" * (MAX_DEPTH + 2) + "01", f"nested more than {MAX_DEPTH} deep"),
    ],
)
def test_h25_messagepack_that_is_damaged_is_refused(data, told):
    with pytest.raises(UsageError, match=told):
        unpack(bytes.fromhex(data))


@given(st.binary(max_size=300))
def test_h25_any_bytes_are_messagepack_or_refused(data):
    try:
        unpack(data)
    except UsageError as error:
        assert "build the bundle again" in error.message


# -- targets ----------------------------------------------------------------------------------------------------------------------


def test_h19_a_gpu_takes_its_full_name_and_every_shorter_one():
    keys = [target.key for target in targets(parse_processor("gfx90a:sramecc+:xnack-"))]
    assert keys == ["gfx90a:sramecc+:xnack-", "gfx90a:sramecc+", "gfx90a:xnack-", "gfx90a"]
    assert targets(Processor("gfx1100")) == (Target("amdgpu", "gfx1100"),)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (0x53F, "gfx90a"),
        (0x63F, "gfx90a:xnack-"),
        (0xB3F, "gfx90a:sramecc-:xnack+"),
        (0xD4C, "gfx942:sramecc+"),
        (0x41, "gfx1100"),
        (0x4E, "gfx1201"),
    ],
)
def test_h19_the_flags_name_a_processor_and_its_features(flags, name):
    assert processor_of(flags) == parse_processor(name)


def test_h19_features_may_stand_in_any_order():
    assert parse_processor("gfx90a:xnack-:sramecc+") == parse_processor("gfx90a:sramecc+:xnack-")
    for target in BUILT.split():
        assert parse_processor(target).name in PROCESSORS.values()
        assert str(parse_processor(target)) == target


@pytest.mark.parametrize("text", ["", "sm_90", "gfx", "gfx90a:", "gfx90a:xnack", "GFX90A"])
def test_h19_other_text_names_no_processor(text):
    with pytest.raises(UsageError, match="is no AMD processor; write a name such as gfx90a"):
        parse_processor(text)


@pytest.mark.parametrize(
    ("code", "gpu", "runs"),
    [
        (0x53F, "gfx90a:sramecc+:xnack-", True),
        (0x63F, "gfx90a:sramecc+:xnack-", True),
        (0x73F, "gfx90a:sramecc+:xnack-", False),
        (0x53F, "gfx90a", True),
        (0x63F, "gfx90a", False),
        (0x53F, "gfx1100", False),
        (0x41, "gfx1100", True),
    ],
)
def test_h19_code_runs_where_its_processor_and_its_features_are(code, gpu, runs):
    told = read_code_object(patched(FLAGS, struct.pack("<I", code)))
    if runs:
        check_processor(told, parse_processor(gpu))
    else:
        with pytest.raises(UsageError, match=rf"built for gfx90a\S*, this GPU is {gpu.replace('+', '.')}: build the bundle for it"):
            check_processor(told, parse_processor(gpu))


@pytest.mark.parametrize("at", [256, 396, 1160, 3000])
def test_d05_the_gpu_s_name_is_found_wherever_the_properties_have_it(at):
    properties = bytearray(4096)
    properties[: len(b"AMD gfx card")] = b"AMD gfx card"
    assert arch_name(bytes(properties)) is None
    properties[at : at + 23] = b"gfx90a:sramecc+:xnack-\0"
    assert arch_name(bytes(properties)) == parse_processor("gfx90a:sramecc+:xnack-")


def test_d05_a_product_that_is_called_like_a_processor_is_not_asked():
    assert arch_name(b"gfx90a\0".ljust(256, b"\0") + b"gfx1100\0") == Processor("gfx1100")
