"""Artifacts: what does not fit is refused with the reason before it can do harm (H25); code lives as long as it is used (H27)."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.descriptors import CODE, count_open

from remora.drivers.cpu import processor
from remora.drivers.cpu.elf import check_elf
from remora.errors import ClosedError, NotFoundError, UnsupportedError, UsageError
from remora.hal.executable import BindingRule, ConstantRule, KernelInfo

from_source = Path(__file__).parent / "kernels/plain.c"
EMPTY = (KernelInfo("empty"),)


@pytest.fixture
def load(cpu):
    """load(artifact, kernels) on the device's most general target."""
    return lambda artifact, kernels=EMPTY: cpu.load_artifact(cpu.targets[-1], artifact, kernels)


@pytest.mark.parametrize(
    ("artifact", "message"),
    [
        (b"", r"0 bytes, starting with b''\) is no ELF shared library"),
        (b"\x7fELF", "4 bytes"),
        (b"MZ" + bytes(100), "starting with b'MZ"),
        (b"#!/bin/sh\n" * 20, "is no ELF shared library"),
    ],
)
def test_h25_what_is_no_elf_file_is_refused(load, artifact, message):
    with pytest.raises(UsageError, match=message):
        load(artifact)


def patched(artifact, offset, code, value):
    changed = bytearray(artifact)
    struct.pack_into(code, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("offset", "code", "value", "message"),
    [
        (4, "B", 1, "no 64-bit little-endian"),
        (5, "B", 2, "no 64-bit little-endian"),
        (16, "<H", 1, "type 1, not a shared library: link it with -shared"),
        (18, "<H", 8, "was made for machine 8, this machine is"),
        (18, "<H", 190, "was made for cuda"),
        (32, "<Q", 1 << 63, "cut off before the end of its program headers"),
        (54, "<H", 32, "program headers are damaged"),
        (56, "<H", 0, "program headers are damaged"),
        (56, "<H", 60000, "program headers are damaged"),
    ],
)
def test_h25_a_header_that_does_not_fit_is_refused(load, plain, offset, code, value, message):
    with pytest.raises(UsageError, match=message):
        load(patched(plain, offset, code, value))


def test_h25_an_artifact_for_another_machine_is_refused(load, plain, monkeypatch):
    monkeypatch.setattr("remora.drivers.cpu.elf.architecture", lambda: "sparc64")
    with pytest.raises(UsageError, match=f"made for {processor.architecture()}, this machine is sparc64: choose another target"):
        load(plain)


def test_h25_a_segment_beyond_the_end_is_refused(load, plain):
    (table,) = struct.unpack_from("<Q", plain, 32)
    with pytest.raises(UsageError, match="is cut off: it has"):
        load(patched(plain, table + 32, "<Q", len(plain) + 1))


def test_h25_every_cut_is_refused_or_harmless(load, plain):
    """Cut anywhere, an artifact is refused with an error of ours, or only the part that the loader never reads is gone."""
    refused = 0
    for length in range(0, len(plain), 97):
        try:
            load(plain[:length]).close()
        except UsageError:
            refused += 1
    assert refused > 100


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_h25_the_header_check_survives_any_bytes(plain, data):
    mutated = bytearray(plain[: data.draw(st.integers(0, 2000))])
    for _ in range(data.draw(st.integers(0, 8))):
        if mutated:
            mutated[data.draw(st.integers(0, min(len(mutated), 400) - 1))] = data.draw(st.integers(0, 255))
    try:
        check_elf(memoryview(bytes(mutated)))
    except UsageError as error:
        assert error.message


@pytest.mark.parametrize(
    ("flag", "kind", "message"),
    [
        ("-DABI_VERSION=5u", UsageError, "ABI version 0x5, only 0x6 is understood"),
        ("-DABI_VERSION=7u", UsageError, "ABI version 0x7"),
        ("-DREFUSE", UsageError, "the artifact refused this host"),
        ("-DNO_QUERY", UsageError, "does not export iree_hal_executable_library_query"),
        ("-DSANITIZER=1", UnsupportedError, "sanitizer"),
        ('-DIMPORT="host_print"', UnsupportedError, "imports 'host_print'"),
        ("-DCONSTANT_COUNT=2", UsageError, "takes 2 words of specialization constants, its manifest declares 0"),
    ],
)
def test_h25_a_library_of_another_kind_is_refused(load, compile_library, flag, kind, message):
    with pytest.raises(kind, match=message):
        load(compile_library(from_source, flag))


def test_an_optional_import_may_be_missing(load, compile_library):
    executable = load(compile_library(from_source, '-DIMPORT="host_print?"'))
    assert list(executable) == ["empty"]
    executable.close()


def test_h25_a_missing_symbol_is_named(load, compile_library, tmp_path):
    source = tmp_path / "missing.c"
    source.write_text("int not_there(void); int call(void) { return not_there(); }")
    with pytest.raises(UsageError, match=r"does not load: .*undefined symbol: not_there"):
        load(compile_library(source))


def test_a_missing_export_lists_what_is_there(load, plain):
    with pytest.raises(NotFoundError, match="no export 'subtract'; it has: empty, add, fail, mark, gate, scratch, report"):
        load(plain, [KernelInfo("subtract")])
    with pytest.raises(NotFoundError, match="no export 'sub'"):
        load(plain, [KernelInfo("add", export="sub")])


def test_d04_dynamic_shared_memory_is_local_memory_beside_what_the_code_declares(cpu, load, plain):
    out = cpu.allocate(12)
    for shared in (0, 1, 100_000):
        kernel = load(plain, [KernelInfo("local", (BindingRule("out"),), shared_bytes=shared)])["local"]
        cpu.queue.dispatch(kernel, (3, 1, 1), [out]).wait(10)
        assert out.read(timeout=10).cast("I").tolist() == [4096 + shared] * 3


def test_d04_clusters_are_refused(load, plain):
    with pytest.raises(UnsupportedError, match=r"empty runs in clusters of \(1, 2, 1\) workgroups, which the cpu driver does not"):
        load(plain, [KernelInfo("empty", cluster=(1, 2, 1))])


def test_a_kernel_may_have_another_name_than_its_export(cpu, load, plain):
    kernel = load(plain, [KernelInfo("other", (BindingRule("cells"),), export="mark")])["other"]
    cells = cpu.upload(bytes(8))
    cpu.queue.dispatch(kernel, (2, 1, 1), [cells]).wait(10)
    assert cells.read(timeout=10).cast("I").tolist() == [1, 1]


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (KernelInfo("add", (BindingRule("a"),), (ConstantRule("n"),)), "compiled with 3 bindings, its manifest has 1"),
        (KernelInfo("mark", (BindingRule("a"),) * 2), "compiled with 1 bindings, its manifest has 2"),
        (KernelInfo("add", (BindingRule("a"),) * 3), "compiled with 1 constants, its manifest has 0"),
        (KernelInfo("add", (BindingRule("a"),) * 3, (ConstantRule("n", "u64"),)), "compiled with 1 constants, its manifest has 2"),
        (KernelInfo("empty", (BindingRule("a"),) * 65), "0 words of constants and 65 bindings; the ABI carries 64 and 64"),
        (
            KernelInfo("empty", (), tuple(ConstantRule(str(i), "u64") for i in range(33))),
            "66 words of constants and 0 bindings; the ABI carries 64 and 64",
        ),
    ],
)
def test_h25_counts_that_do_not_fit_are_refused(load, plain, info, message):
    with pytest.raises(UsageError, match=message):
        load(plain, [info])


def test_the_most_constants_and_bindings_fit(cpu, load, plain):
    info = KernelInfo("most", (BindingRule("a"),) * 64, tuple(ConstantRule(str(i)) for i in range(64)), export="empty")
    cpu.queue.dispatch(load(plain, [info])["most"], (1, 1, 1), [cpu.allocate(4)] * 64, range(64)).wait(10)
    assert cpu.statistics().dispatches == 1


def test_a_refused_artifact_leaves_nothing_behind(load, plain, compile_library):
    def held():
        return count_open(CODE)

    before = held()
    for artifact, kernels in ((b"x", EMPTY), (plain, [KernelInfo("subtract")]), (compile_library(from_source, "-DREFUSE"), EMPTY)):
        with pytest.raises(UsageError):
            load(artifact, kernels)
    assert held() == before


@pytest.mark.parametrize("order", [(1, 2), (1, 2, 3, 1)])
def test_two_artifacts_do_not_mix(cpu, load, compile_library, order):
    """The system's loader knows a library by its path: loads one after and beside another must give their own code."""
    info = KernelInfo("answer", (BindingRule("out", bytes=4),))
    out = cpu.allocate(4)

    def ask(executable):
        cpu.queue.dispatch(executable["answer"], (1, 1, 1), [out]).wait(10)
        return out.read().cast("I")[0]

    artifacts = {answer: compile_library(from_source.with_name("answer.c"), f"-DANSWER={answer}") for answer in order}
    for answer in order:
        executable = load(artifacts[answer], [info])
        assert ask(executable) == answer
        executable.close()
        del executable
    beside = [load(artifacts[answer], [info]) for answer in order]
    assert [ask(executable) for executable in beside] == list(order)


def test_closed_code_is_not_run(cpu, kernels):
    empty = kernels["empty"]
    kernels.close()
    kernels.close()
    with pytest.raises(ClosedError, match="the executable of empty was closed; load it again"):
        cpu.queue.dispatch(empty, (1, 1, 1), [])


def test_h27_code_lives_until_its_operation_is_done(cpu, plain, infos):
    executable = cpu.load_artifact(cpu.targets[-1], plain, infos)
    cells = cpu.upload(bytes(400))
    go = cpu.semaphore()
    before = count_open(CODE)
    done = cpu.queues[1].dispatch(executable["mark"], (100, 1, 1), [cells], wait=go.at(1))
    executable.close()
    del executable
    assert count_open(CODE) == before
    go.signal(1)
    done.wait(10)
    assert cells.read().cast("I").tolist() == [1] * 100
    cpu.queues[1].wait_idle(10)
    assert count_open(CODE) == before - 1
