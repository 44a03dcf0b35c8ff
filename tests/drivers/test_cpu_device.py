"""The cpu device: its facts, its options, its end (D01)."""

import os
import time
from operator import gt
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.descriptors import MEMORY, count_open

from remora.drivers.cpu import _ffi, processor
from remora.errors import ClosedError, UnsupportedError, UsageError
from remora.hal.registry import open_devices
from remora.hal.target import Target

V2 = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (set(), ["x86_64"]),
        (V2, ["x86_64-v2", "x86_64"]),
        (V3, ["x86_64-v3", "x86_64-v2", "x86_64"]),
        (V4, ["x86_64-v4", "x86_64-v3", "x86_64-v2", "x86_64"]),
        (V4 - {"fma"}, ["x86_64-v2", "x86_64"]),
        (V4 - {"popcnt"}, ["x86_64"]),
    ],
)
def test_d01_targets_best_first_and_no_level_without_those_below(flags, keys):
    assert processor.targets("x86_64", frozenset(flags)) == tuple(Target("cpu", key) for key in keys)


def test_d01_other_architectures_have_one_target():
    assert processor.targets("aarch64", frozenset()) == (Target("cpu", "aarch64"),)


def test_d01_feature_words():
    assert processor.feature_words("x86_64", frozenset({"pni", "avx2", "amx_bf16", "unheard_of"})) == [
        1 | 1 << 15 | 1 << 52,
        *[0] * 7,
    ]
    assert processor.feature_words("aarch64", frozenset({"fp", "sve"}))[0] == 1 | 1 << 20
    assert processor.feature_words("riscv64", frozenset({"fp"})) == [0] * 8


def test_d01_facts_of_this_machine(cpu):
    assert cpu.info.driver == "cpu"
    assert cpu.name
    assert cpu.targets[-1] == Target("cpu", os.uname().machine)
    (heap,) = cpu.info.heaps
    assert 0 < heap.max_allocation < heap.size <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert heap.alignment == 64
    assert len(cpu.queues) == cpu.info.queue_count == 4
    assert 0 < processor.available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_control_groups_limit_counts(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(processor, "CGROUP_LIMIT", limit)
    whole = processor.total_bytes()
    limit.write_text("1048576\n")
    assert processor.total_bytes() == 1 << 20
    limit.write_text("max\n")
    assert processor.total_bytes() == whole


@pytest.mark.parametrize(("uri", "threads"), [("cpu", None), ("cpu://", None), ("cpu://?threads=1", 1), ("cpu://?threads=3", 3)])
def test_d01_threads(uri, threads):
    (device,) = open_devices(uri)
    with device:
        assert device.pool.threads == (threads or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("cpu://?threads=0", "1 to 1024, not '0'"),
        ("cpu://?threads=1025", "1 to 1024"),
        ("cpu://?threads=-1", "1 to 1024"),
        ("cpu://?threads=many", "'many'"),
        ("cpu://?threads=", "1 to 1024"),
        ("cpu://?cores=2", "does not know 'cores'"),
        ("cpu://zero", "does not know 'zero'"),
    ],
)
def test_d01_wrong_options_are_named(uri, message):
    with pytest.raises(UsageError, match=message):
        open_devices(uri)


def test_d01_another_platform_is_told_what_is_missing(monkeypatch):
    monkeypatch.setattr("remora.drivers.cpu.sys", SimpleNamespace(platform="darwin"))
    with pytest.raises(UnsupportedError, match=r"needs Linux .* this is darwin: .*remote-tcp"):
        open_devices("cpu")


def test_d01_a_missing_pool_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(_ffi, "POOL_PATH", tmp_path / "_pool.so")
    _ffi.load_pool.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match=r"worker pool .* does not load .* install remora again"):
            open_devices("cpu")
    finally:
        _ffi.load_pool.cache_clear()


def test_closing_is_safe_to_repeat_and_ends_everything(cpu):
    buffer = cpu.allocate(64)
    cpu.close()
    cpu.close()
    for call in (lambda: cpu.allocate(1), lambda: cpu.queue.fill(buffer), lambda: buffer.read(timeout=5), cpu.semaphore):
        with pytest.raises(ClosedError):
            call()
    buffer.close()


def test_closing_gives_back_threads_and_descriptors():
    def held():
        return len(os.listdir("/proc/self/task")), count_open(MEMORY)

    before = held()
    for _ in range(3):
        (device,) = open_devices("cpu://?threads=4")
        with device:
            device.upload(bytes(1 << 20)).close()
        del device
    deadline = time.monotonic() + 10
    while any(map(gt, held(), before)) and time.monotonic() < deadline:  # the system lists a joined thread for a moment longer
        os.sched_yield()
    assert not any(map(gt, held(), before))


def test_h27_a_close_fails_what_has_not_run(cpu):
    never = cpu.semaphore()
    done = cpu.queue.barrier(wait=never.at(1))
    signalled = cpu.semaphore()
    behind = cpu.queue.fill(cpu.allocate(4), signal=signalled.at(1))
    cpu.close()
    for point in (done, behind, signalled.at(1)):
        with pytest.raises(ClosedError, match="was closed before this operation ran"):
            point.wait(5)


def test_the_pool_is_beside_its_source():
    assert Path(_ffi.POOL_PATH).with_name("pool.c").exists()
