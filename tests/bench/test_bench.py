"""`remora bench`: every number is there, floors stand beside ours, and nothing stays behind."""

import json
import mmap
import os
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest

from remora.bench.bench import CASES, BenchOptions, run
from remora.bench.carriers import CarrierEcho
from remora.bench.floors import RawEcho, RawMemory, RawStream
from remora.bench.measure import Run, Subject, alternate, each, paired_ratio, percentile, whole
from remora.bench.placement import PLACEMENTS
from remora.bench.processes import Companion, children, cpu_ns, peak_bytes, shared_bytes
from remora.bench.report import Machine, Report, Row, Target
from remora.errors import NotFoundError

QUIET = Machine("processor", 2, "kernel", "python", (0.1, 0.2))


@pytest.mark.parametrize(
    ("target", "value", "ratio", "met"),
    [
        (Target(10), 10.0, None, True),
        (Target(10), 10.1, 0.1, False),
        (Target(1.5, of="ratio"), 99.0, 1.5, True),
        (Target(1.5, of="ratio"), 0.1, 1.6, False),
        (Target(1.5, of="ratio"), 0.1, None, False),
        (Target(0.4, of="ratio", at_most=False), 1.0, 0.39, False),
        (Target(0.4, of="ratio", at_most=False), 1.0, 0.4, True),
    ],
)
def test_target(target, value, ratio, met):
    assert Row("row", "us", value, ratio=ratio, target=target).ok is met


def test_a_row_without_a_target_is_neither_met_nor_missed():
    assert Row("row", "us", 1.0).ok is None


def test_a_report_says_when_the_machine_was_busy():
    busy = Machine("processor", 2, "kernel", "python", (7.0, 7.0))
    assert Report(QUIET, False, 1.0, ()).notes == ()
    assert "busy" in Report(busy, False, 1.0, ()).notes[0]
    assert "quick" in Report(QUIET, True, 1.0, ()).notes[0]


def test_alternate_interleaves_and_counts():
    order = []

    def batch(name):
        def run_it(count):
            order.append(name)
            return [count]

        return run_it

    steps = []
    first, second = alternate([Subject("a", batch("a")), Subject("b", batch("b"))], 2, 5, lambda: steps.append(1), warm=3)
    assert order == ["a", "b"] * 3
    assert len(steps) == 6
    assert first.rounds == second.rounds == [[5], [5]]
    assert first.operations == 10


def test_ratio_is_paired_by_repetition():
    assert paired_ratio(Run([[20], [200], [30]]), Run([[10], [100], [10]])) == 2.0


def test_percentile():
    assert [percentile(range(100), share) for share in (0, 50, 99, 100)] == [0, 50, 99, 99]


def test_batches_time_every_call_or_all_together():
    calls = []
    assert len(each(lambda: calls.append(1))(7)) == 7
    assert len(whole(lambda count: calls.extend(range(count)))(3)) == 1
    assert len(calls) == 10


@pytest.mark.parametrize("carrier", ["tcp", "unix", "shm"])
def test_floors_move_every_byte(tmp_path, carrier):
    with Companion("floor", str(tmp_path)) as floor:
        address = next(address for address in floor.ready.split() if address.startswith(carrier))
        echo = RawEcho(address, 136, 24)
        echo.round_trip()
        echo.pipeline(5000)
        echo.pipeline(1000, 16)
        echo.round_trip()
        echo.close()
        stream = (RawMemory if carrier == "shm" else RawStream)(address, 3 << 20)
        stream.upload()
        stream.download()
        stream.close()
        assert cpu_ns(floor.pid) > 0


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_both_ends_of_a_carrier_echo_have_their_place(tmp_path, placement):
    before = os.sched_getaffinity(0)
    with Companion("carriers", str(tmp_path), "56", "24") as companion, ExitStack() as stack:
        echoes = [stack.enter_context(closing(CarrierEcho(address, 56, 24))) for address in companion.ready.split()]
        with PLACEMENTS[placement](companion.pid):
            here, there = os.sched_getaffinity(0), os.sched_getaffinity(companion.pid)
            assert (len(here), len(there)) == (1, 1)
            assert (here == there) is (placement == "one core" or len(before) == 1)
            for echo in echoes:
                echo.round_trip()
                echo.round_trip()
        assert os.sched_getaffinity(0) == os.sched_getaffinity(companion.pid) == before


def test_a_companion_that_cannot_start_is_an_error(capfd):
    with pytest.raises(NotFoundError, match="ended"):
        Companion("nothing")
    assert "remora bench" in capfd.readouterr().err


def test_the_kernel_tells_peak_memory():
    assert 1 << 20 < peak_bytes() < 1 << 34
    assert peak_bytes(os.getpid()) >= 1 << 20
    with mmap.mmap(-1, 1 << 20) as shared:  # memory of a file without a name
        before = shared_bytes()
        shared[:] = bytes(1 << 20)
        assert shared_bytes() - before >= 1 << 19


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_quick_run_has_every_row_and_leaves_no_process():
    before = children(os.getpid())
    shares = []
    report = run(BenchOptions(quick=True, parts=("floors",), progress=lambda case, share: shares.append((case, share))))
    assert children(os.getpid()) == before
    assert {case for case, _ in shares} == {title for title, _, _ in CASES} | {"done"}
    assert [share for _, share in shares] == sorted(share for _, share in shares)
    names = " ".join(row.name for row in report.rows)
    for wanted in (
        "tcp carrier alone",
        "tcp, a core each: dispatch",
        "tcp, one core: dispatch",
        "unix, a core each: dispatch",
        "shm, a core each: dispatch",
        "shm: upload",
        "one wait",
        "tcp: upload 2 x 4 MiB, add, download",
        "cpu, here: 1,000 recorded dispatches",
        "tcp: 1,000 recorded dispatches",
        "unix: 1,000 recorded dispatches",
        "upload",
        "first result",
        "import",
        "idle",
        "peak",
        "kill -9",
        "memcpy",
    ):
        assert wanted in names
    for row in report.rows:
        assert row.value >= 0
        assert row.ratio is None or row.floor
    assert json.loads(json.dumps(report.as_json()))["quick"] is True


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_command_prints_a_table_and_writes_json(tmp_path):
    file = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "remora.cli", "bench", "--quick", "--peers", "none", "--json", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tcp, a core each: dispatch + wait" in done.stdout
    assert "remora, shm" in done.stdout
    assert "PoCL-Remote 7.2 *" in done.stdout
    assert json.loads(file.read_text())["machine"]["cores"] > 0
