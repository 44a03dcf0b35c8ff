"""H24: a server whose monotonic clock is another one. A time namespace gives it an offset of more than a day."""

import os
import shutil
import subprocess
import sys
from time import monotonic_ns

import pytest
from tests.faults.processes import Service

import remora

LONG = 20.0
SECONDS = 100_000
PREFIX = ("unshare", "--time", "--monotonic", str(SECONDS), "--fork", "--kill-child")


@pytest.fixture
def elsewhere():
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare: apt-get install util-linux")
    if os.geteuid() != 0:
        pytest.skip("time namespaces need root: run as root")
    if subprocess.run([*PREFIX, sys.executable, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip("this kernel or container makes no time namespaces: run on Linux 5.6 or later, as root outside of a container")
    with Service(prefix=PREFIX) as server:
        yield server.uri


def test_h24_records_are_moved_to_this_sides_clock(elsewhere):
    records, seen = [], []
    with remora.open(elsewhere) as device, device.allocate(64) as buffer, device.profile(records.extend) as profile:
        first = profile.clock
        for _ in range(20):
            before = monotonic_ns()
            device.queue.fill(buffer, b"a").wait(LONG)
            seen.append((before, monotonic_ns()))
        profile.flush(LONG)
        clock = profile.clock
    for known in (first, clock):
        assert 0 < known.error_ns < 1_000_000_000
        assert abs(known.offset_ns - SECONDS * 10**9) <= known.error_ns
    error = max(first.error_ns, clock.error_ns) + 1_000_000  # drift in between
    for (before, after), record in zip(seen, records, strict=True):
        assert before <= record.submit_ns <= after
        assert before - error <= record.start_ns <= record.end_ns <= after + error
