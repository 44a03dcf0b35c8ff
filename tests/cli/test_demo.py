"""`remora demo`: the README's first command."""

import contextlib
import os
import re
import subprocess
import sys

import pytest

from remora.cli import demo, meter
from remora.cli.main import main

STEPS = ["connect", "load vector", "upload a, b", "add_i32", "download a + b", "mix_u32", "download mix"]


def test_the_demo_verifies_and_says_what_it_cost(remora_command):
    done = remora_command("demo", "--elements", "64Ki")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1].split() == ["PASS", "every", "result", "is", "right"]
    assert sum(line.startswith("verified") for line in lines) == 2
    assert sum(line.startswith("artifact") and " artifacts" in line for line in lines) == 2
    (heading,) = (number for number, line in enumerate(lines) if line.startswith("step "))
    assert [line.startswith(step) for line, step in zip(lines[heading + 1 :], STEPS, strict=False)] == [True] * len(STEPS)
    (server,) = (line for line in lines if line.startswith("server"))
    pid = int(server.split()[2].rstrip(","))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_on_a_terminal_bars_show_the_transfers():
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "remora.cli", "demo", "--elements", "64Ki"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while piece := os.read(ours, 65536):
                shown += piece
    os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())  # without colours and movements of the cursor
    assert re.search(r"upload a, b .*\u2501.*/262.1 kB", text)
    assert re.search(r"download mix .*\u2501.*/262.1 kB", text)
    assert "PASS" in text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_with_16_mi_elements():
    command = [sys.executable, "-m", "remora.cli", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "16,777,216 integers" in done.stdout


def test_a_wrong_result_ends_with_1(monkeypatch, capsys):
    monkeypatch.setattr(demo, "mix_in_place", lambda values: None)
    assert main(["demo", "--elements", "1Ki"]) == 1
    shown = capsys.readouterr()
    assert "error: mix_u32 computed something else than NumPy" in shown.err
    assert "PASS" not in shown.out


def test_without_numpy_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert main(["demo"]) == 1
    assert "pip install numpy" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "count"), [("64Ki", 65536), ("2Mi", 2 << 20), ("3k", 3000), ("1M", 1_000_000), ("17", 17)])
def test_numbers_of_elements(text, count):
    assert demo.elements_of(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "Mi", "1.5Mi", "1Gi", "1000000000000", "x"])
def test_what_is_no_number_of_elements_is_wrong_usage(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--elements", text])
    assert ended.value.code == 2
    assert "--elements" in capsys.readouterr().err


def test_h16_a_kernel_run_costs_at_most_one_round_trip_and_so_does_an_array(monkeypatch):
    kept = []
    monkeypatch.setattr(meter.Meter, "print", lambda self: kept.extend(self.costs()))
    assert main(["demo", "--elements", "64Ki"]) == 0
    trips = {row.name: round_trips for row, _, _, round_trips in kept}
    assert trips["load vector"] == trips["load matmul"] == 1
    assert trips["upload a, b"] <= 2
    assert trips["download a + b"] <= 1
    assert trips["add_i32"] <= meter.REPEATS
    row, sent, received, _ = kept[-1]
    matrix, integers = 4 * 512 * 512, 4 * 65536
    assert row.name == "whole run"
    assert 2 * integers + 2 * matrix <= sent < 2 * integers + 2 * matrix + 32768  # kernels, commands and frames are the rest
    assert 2 * integers + matrix <= received < 2 * integers + matrix + 32768
