"""H19, H25, H27: named globals of a library: found in its symbols, checked, and there as long as anything uses them."""

import gc
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.descriptors import count_open

from remora import samples
from remora.drivers.cpu.elf import HEADER, PROGRAM_HEADER, check_elf
from remora.drivers.cpu.symbols import Memory, exported_memory
from remora.errors import UnsupportedError, UsageError
from remora.hal.artifact import Artifact
from remora.hal.executable import KernelInfo
from remora.hal.specialization import ExecutableInfo, GlobalRule
from remora.server.content import seal

SPECIAL = samples.load("special")
CPU_TARGETS = [target for target in SPECIAL.targets if target.family == "cpu"]
SOURCE = """
#include "remora_executable.h"
__attribute__((visibility("protected"), aligned(64))) uint32_t words[4] = {1, 2, 3, 4};
__attribute__((visibility("protected"), aligned(64))) uint32_t zeros[1000];
__attribute__((visibility("protected"), aligned(64))) const uint32_t fixed[4] = {1, 2, 3, 4};
__attribute__((visibility("protected"), aligned(64))) uint32_t *const moved = words;
__attribute__((visibility("protected"), aligned(64))) char pair[2];
__attribute__((visibility("hidden"), aligned(64))) uint32_t secret[4];
static struct { char first; char second; } static_pair;
__asm__(".pushsection .data; .balign 64; .zero 4; .globl skewed; .protected skewed; .type skewed, %object; .size skewed, 4;"
        "skewed: .long 1; .popsection");
__attribute__((weak, visibility("default"), aligned(64))) uint32_t environ[4] = {9};
uint32_t function(void) { return secret[0] + static_pair.first; }
static int count(const iree_hal_executable_environment_v0_t *e, const iree_hal_executable_dispatch_state_v0_t *d,
                 const iree_hal_executable_workgroup_state_v0_t *w) { zeros[0]++; words[0]++; return (int)secret[0]; }
static const iree_hal_executable_library_header_t header = {6, "globals", 0, 0};
static const iree_hal_executable_dispatch_v0_t ptrs[] = {count};
static const char *const names[] = {"count"};
static const iree_hal_executable_library_v0_t library = {&header, {0}, {1, ptrs, 0, 0, 0, names}, 0};
const iree_hal_executable_library_header_t **iree_hal_executable_library_query(
    uint32_t version, const iree_hal_executable_environment_v0_t *environment) {
  return (const iree_hal_executable_library_header_t **)&library;
}
"""
COUNT = (KernelInfo("count"),)


@pytest.fixture(scope="module", params=["gnu", "sysv"])
def library(request, compile_library, tmp_path_factory):
    """A library with many kinds of symbols, under either kind of hash table."""
    source = tmp_path_factory.mktemp("globals") / "globals.c"
    source.write_text(SOURCE)
    return compile_library(source, f"-Wl,--hash-style={request.param}")


def codes():
    """Descriptors of code that is loaded, and of content."""
    gc.collect()
    return count_open("/memfd:remora-co")


def load(cpu, artifact, *rules):
    return cpu.load_artifact(cpu.targets[-1], artifact, ExecutableInfo(COUNT, (), rules))


def test_h19_exported_memory_is_found_with_its_size(library):
    found = exported_memory(memoryview(library))
    assert found["words"] == Memory(16, True)
    assert found["zeros"] == Memory(4000, True)
    assert found["fixed"] == Memory(16, False)
    assert found["moved"] == Memory(8, False)  # the loader writes it, and then protects it
    assert found["pair"] == Memory(2, True)
    assert found["environ"] == Memory(16, True)
    assert not {"secret", "function", "static_pair", "iree_hal_executable_library_query"} & found.keys()


@pytest.mark.parametrize("target", CPU_TARGETS, ids=str)
def test_h19_the_samples_export_their_globals_for_every_machine(target):
    found = exported_memory(memoryview(SPECIAL.artifact(target)))
    assert found == {rule.export: Memory(rule.size, True) for rule in SPECIAL.info.globals}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (GlobalRule("fixed", 16), "fixed cannot be written in the artifact: declare it without const"),
        (GlobalRule("moved", 8), "moved cannot be written"),
        (GlobalRule("skewed", 4), "skewed does not begin at a multiple of 64 bytes"),
        (GlobalRule("secret", 16), "exports no memory 'secret'; it exports: .*words"),
        (GlobalRule("f", 4, "function"), "exports no memory 'function'"),
    ],
)
def test_h25_what_is_no_global_is_refused_and_leaves_nothing(cpu, library, rule, message):
    before = codes()
    with pytest.raises(UsageError, match=message):
        load(cpu, library, rule)
    assert codes() == before


def test_h19_a_global_is_the_librarys_own_whatever_else_has_its_name(cpu, library):
    executable = load(cpu, library, GlobalRule("mine", 16, "words"), GlobalRule("zeros", 4000))
    cpu.queue.dispatch(executable["count"], (1, 1, 1), []).wait(10)
    assert executable.globals["mine"].read().cast("I").tolist() == [2, 2, 3, 4]
    assert executable.globals["zeros"].read().cast("I")[0] == 1
    with pytest.raises(UnsupportedError, match="cannot be shared with another process"):
        executable.globals["mine"].descriptor()


def test_h27_the_library_is_there_as_long_as_its_memory_is_seen(cpu, library):
    before = codes()
    executable = load(cpu, library, GlobalRule("words", 16))
    seen = executable.globals["words"].host_memory()
    executable.close()
    del executable
    assert codes() == before + 1
    assert seen.cast("I").tolist() == [1, 2, 3, 4]
    del seen
    assert codes() == before


def test_h19_sealed_content_is_loaded_without_a_copy_and_twice_without_sharing(cpu, library):
    rule = GlobalRule("zeros", 4000)
    before = codes()
    with seal(memoryview(library)) as content:
        artifact = Artifact(content.view(), content.descriptor)
        file = os.fstat(content.descriptor).st_ino
        loaded = [load(cpu, artifact, rule) for _ in range(3)]
        assert f" {file} " in Path("/proc/self/maps").read_text()
        for number, executable in enumerate(loaded):
            for _ in range(number + 1):
                cpu.queue.dispatch(executable["count"], (1, 1, 1), []).wait(10)
        assert [executable.globals["zeros"].read().cast("I")[0] for executable in loaded] == [1, 2, 3]
        for executable in loaded:
            executable.close()
        del executable, loaded
        codes()
        again = load(cpu, artifact, rule)  # the file is free again
        assert f" {file} " in Path("/proc/self/maps").read_text()
        assert again.globals["zeros"].read().cast("I")[0] == 0
        again.close()
        del again, artifact
    assert codes() == before


# -- damaged symbols ----------------------------------------------------------------------------------------------------------

plain = SPECIAL.artifact(CPU_TARGETS[0])


def dynamic_entries(artifact):
    """(offset in the file, tag, value) of the dynamic section."""
    *_, table, _, _, _, _, count = HEADER.unpack_from(artifact)
    for index in range(count):
        kind, _, offset, _, _, size, _, _ = PROGRAM_HEADER.unpack_from(artifact, table + index * PROGRAM_HEADER.size)
        if kind == 2:
            for at in range(offset, offset + size, 16):
                yield at, *struct.unpack_from("<QQ", artifact, at)


@pytest.mark.parametrize("tag", [4, 5, 6, 10, 0x6FFFFEF5])
@pytest.mark.parametrize("value", [0, 1, 1 << 40, (1 << 64) - 1])
def test_h25_a_symbol_table_that_lies_outside_is_refused(library, tag, value):
    changed = bytearray(library)
    for at, found, _ in dynamic_entries(library):
        if found == tag:
            struct.pack_into("<Q", changed, at + 8, value)
    try:
        exported_memory(memoryview(bytes(changed)))
    except UsageError as error:
        assert "symbols are damaged" in str(error)


@pytest.mark.parametrize("tag", [5, 6])
def test_h25_a_missing_symbol_table_is_no_memory(library, tag):
    changed = bytearray(library)
    for at, found, _ in dynamic_entries(library):
        if found == tag:
            struct.pack_into("<Q", changed, at, 0x7000_0000)
    assert exported_memory(memoryview(bytes(changed))) == {}


@given(st.data())
def test_h25_any_bytes_behind_a_good_header_are_refused_or_read(data):
    mutated = bytearray(plain)
    for _ in range(data.draw(st.integers(1, 8))):
        mutated[data.draw(st.integers(64, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    view = memoryview(bytes(mutated))
    try:
        check_elf(view)
        found = exported_memory(view)
    except UsageError as error:
        assert error.message
    else:
        assert all(memory.size >= 0 for memory in found.values())
