"""Every decoder has a fuzz target and a corpus (H25)."""

import json
import random
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap

import pytest
from tests.fuzz.long import record, run_all, run_target
from tests.fuzz.run import CORPUS, EDGES, LEAST, change, fuzz, try_one
from tests.fuzz.targets import OPS, TARGETS

from remora.wire import commands

KEPT = []


def leak(data):
    """A page that no freed memory of the process can serve: an allocation may come from what earlier tests gave back."""
    page = mmap(-1, PAGESIZE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    page[:] = bytes([1]) * PAGESIZE
    KEPT.append(page)


@pytest.mark.parametrize("name", TARGETS)
def test_h25_fuzz_for_a_moment(name):
    assert fuzz(name, 0.1, seed=1) >= len(TARGETS[name].seeds) + LEAST


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_h25_fuzz_for_a_share_of_two_minutes(name):
    """All targets together; `python -m tests.fuzz.run` goes on for as long as one likes."""
    assert fuzz(name, 120.0 / len(TARGETS), seed=2) >= len(TARGETS[name].seeds) + LEAST


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.bin")), ids=lambda file: file.name)
def test_h25_corpus(file):
    name = file.name.rsplit("-", 1)[0]
    assert try_one(name, file.read_bytes()) is try_one(name, file.read_bytes(), measured=True)


def test_every_operation_and_lane_is_reached():
    assert {"bootstrap", "control", "queue", "bulk", "session-client", "session-server"} <= set(TARGETS)
    assert all(target.seeds for target in TARGETS.values())
    assert {commands.DECODERS[op] for op in (*OPS, commands.BARRIER)} == set(commands.DECODERS.values())


def test_changes_can_be_repeated_and_change_something():
    def run():
        dice = random.Random(5)
        data = bytearray(range(64))
        for _ in range(200):
            change(data, dice, [b"other"])
        return bytes(data)

    assert run() == run() != bytes(range(64))
    assert max(EDGES) == 2**64 - 1


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda data: bytearray(8 << 20), "bytes were allocated"),
        (lambda data: 1 // 0, "by zero"),
    ],
)
def test_a_broken_decoder_is_caught(broken, message, monkeypatch, tmp_path):
    monkeypatch.setattr("tests.fuzz.run.CORPUS", tmp_path)
    monkeypatch.setitem(TARGETS, "status", TARGETS["status"]._replace(run=broken))
    with pytest.raises((AssertionError, ZeroDivisionError), match=message):
        fuzz("status", 5.0, seed=1)
    assert len(list(tmp_path.glob("status-*.bin"))) == 1


def test_h25_a_long_run_counts_every_target_and_writes_what_it_did(tmp_path):
    names = ("status", "abort")
    results = run_all(4000, 3, names, say=lambda _: None)
    record(tmp_path / "fuzz.json", 3, results, "today")
    facts = json.loads((tmp_path / "fuzz.json").read_text())
    assert (facts["inputs"], facts["findings"], facts["seed"]) == (4000, 0, 3)
    assert [target["target"] for target in facts["targets"]] == list(names)


@pytest.mark.parametrize(
    ("broken", "finding"),
    [(lambda data: 1 // 0, "ZeroDivisionError"), (leak, "the process grew by")],
)
def test_a_long_run_tells_an_error_and_growth(broken, finding, monkeypatch, tmp_path):
    monkeypatch.setattr("tests.fuzz.run.CORPUS", tmp_path)
    monkeypatch.setitem(TARGETS, "status", TARGETS["status"]._replace(run=broken))
    try:
        assert finding in run_target("status", 4000, 1).finding
    finally:
        KEPT.clear()
