"""`remora doctor` looks at everything and survives all of it (D11): broken drivers are findings, not the end."""

from __future__ import annotations

import json
import os
import re
import sys
import time

import pytest

from remora.cli.doctor import examine
from remora.cli.finding import STATES, Finding, from_json

LONG = 45.0
#: Drivers that a package may bring: each module is what `open_devices` does.
BAD = {
    "segfaults": "import ctypes\nctypes.string_at(8)",
    "aborts": "import os\nos.abort()",
    "hangs": "import signal\nsignal.pause()",
    "raises": "raise RuntimeError('the vendor broke it')",
    "exits": "import os\nos._exit(3)",
    "talks": "import os\nos.write(1, b'a banner')\nfrom remora.drivers.null import open_devices as real\nreturn real(uri)",
    "refuses": "from remora.errors import UnsupportedError\nraise UnsupportedError('no such hardware: buy some')",
}


@pytest.fixture
def bad_drivers(tmp_path, monkeypatch):
    """A package with all of BAD, which child processes have installed."""
    told = tmp_path / "bad_drivers-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-drivers\nVersion: 1\n")
    entries = "".join(f"{name} = bad_{name}\n" for name in BAD)
    (told / "entry_points.txt").write_text(f"[remora.drivers]\n{entries}")
    for name, body in BAD.items():
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / f"bad_{name}.py").write_text(f"def open_devices(uri):\n{lines}\ndef preload():\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.mark.parametrize(
    ("name", "state", "told"),
    [
        ("segfaults", "broken", r"crashed the probe with SIGSEGV"),
        ("aborts", "broken", r"crashed the probe with SIGABRT"),
        ("raises", "broken", r"ended with 1: RuntimeError: the vendor broke it"),
        ("exits", "broken", r"ended with 3"),
        ("refuses", "absent", r"no such hardware: buy some"),
        ("talks", "ok", r"null, "),
    ],
)
def test_a_broken_driver_is_a_finding(bad_drivers, name, state, told):
    (finding,) = examine(f"driver:{name}", LONG)
    assert (finding.area, finding.name, finding.state) == ("drivers", name, state)
    assert re.search(told, finding.told)
    assert bool(finding.mend) == (state != "ok")


def test_a_driver_that_hangs_is_ended_at_the_deadline(bad_drivers):
    begin = time.monotonic()
    (finding,) = examine("driver:hangs", 1.0)
    assert time.monotonic() - begin < LONG
    assert (finding.name, finding.state) == ("hangs", "broken")
    assert "did not answer within 1 s" in finding.told


def test_a_library_that_is_none_is_broken_and_one_that_is_missing_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    (finding,) = examine("library:libcuda.so.1", LONG)
    assert (finding.area, finding.state) == ("libraries", "broken")
    assert "does not load" in finding.told
    (tmp_path / "libcuda.so.1").unlink()
    (finding,) = examine("library:libcuda.so.1", LONG)
    assert finding.state in {"absent", "ok"}
    assert finding.mend or finding.state == "ok"


@pytest.mark.slow
def test_the_command_looks_at_everything_and_says_what_mends(remora_command, bad_drivers):
    done = remora_command("doctor", "--json", "--deadline", "5")
    assert done.stderr == ""
    findings = [from_json(each) for each in json.loads(done.stdout)]
    assert done.returncode == 1  # several drivers are broken
    by_name = {(finding.area, finding.name): finding for finding in findings}
    for area in ("system", "drivers", "libraries", "packages", "compilers", "devices", "limits", "rdma"):
        assert any(finding.area == area for finding in findings), area
    assert by_name["drivers", "segfaults"].state == "broken"
    assert by_name["drivers", "hangs"].state == "broken"
    assert all(finding.mend for finding in findings if finding.state in {"limit", "broken"})
    for name in ("open files", "locked memory", "/dev/shm", "huge pages"):
        assert ("limits", name) in by_name


def test_the_limits_of_this_process_are_seen():
    findings = {finding.name: finding for finding in examine("limits", LONG)}
    assert findings.keys() >= {"open files", "locked memory", "/dev/shm", "huge pages", "net.core.rmem_max"}
    assert all(finding.state in {"ok", "limit"} for finding in findings.values())
    assert all(bool(finding.mend) == (finding.state == "limit") for finding in findings.values())


def test_this_machine_and_its_cpu_are_well():
    assert [finding.state for finding in examine("system", LONG)] == ["fact", "ok"]
    (finding,) = examine("driver:cpu", LONG)
    assert (finding.state, finding.mend) == ("ok", "")
    assert "cpu:" in finding.told
    packages = {finding.name: finding for finding in examine("packages", LONG)}
    assert packages["pytest"].state == "ok"


def test_what_a_probe_prints_is_checked():
    good = {"area": "a", "name": "b", "state": "ok", "told": "c"}
    assert from_json(good) == Finding("a", "b", "ok", "c")
    assert "ok" in STATES
    for bad in ({**good, "state": "fine"}, {**good, "more": 1}, {"area": "a"}, 7, [["area", "a"]]):
        with pytest.raises((TypeError, ValueError)):
            from_json(bad)
    assert sys.executable in examine("nonsense", LONG)[0].mend
