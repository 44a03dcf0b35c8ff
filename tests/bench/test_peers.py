"""The comparison's table of peers, their environments, the command line, the tables and the picture."""

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from remora.bench.growth import CURVES, decades, doublings
from remora.bench.peers.compare import QUICK, measure
from remora.bench.peers.environments import RECORD, command, default_folder, install, installed, installed_peers, program_path
from remora.bench.peers.metrics import METRICS, Figures
from remora.bench.peers.table import ELSEWHERE, FLOORS, OURS, PEERS, Contestant, find_peers
from remora.bench.picture import check_picture, draw
from remora.bench.report import Curve, Machine, Report
from remora.cli.bench import add_arguments
from remora.cli.bench_tables import comparison_notes, figure, tables
from remora.cli.main import main
from remora.errors import NotFoundError, UnsupportedError, UsageError

QUIET = Machine("processor", 2, "kernel", "python", (0.1, 0.2))
SOME = Figures("tcp", "remora, tcp", "remora", {"rtt_p50": 12.3, "pipelined": 100.0}, {"noticed": "nobody was killed"})
OTHER = Figures("rpyc", "RPyC", "peer", {"rtt_p50": 45.6, "import": 0.0}, {})
LINE = Curve("buffers", "tcp", ((10, 50.0), (100_000, 60.0)))
REPORT = Report(QUIET, False, 1.0, (), (SOME, OTHER, *ELSEWHERE), (LINE,))

# -- the table of peers ---------------------------------------------------------------------------------------------------------


def test_every_contestant_has_a_program_and_a_name_of_its_own():
    everybody = (*FLOORS, *OURS, *PEERS)
    assert len({contestant.name for contestant in everybody}) == len(everybody)
    for contestant in everybody:
        assert program_path(contestant).is_file()
        assert set(contestant.left_out) <= {metric.key for metric in METRICS}


def test_every_requirement_is_pinned():
    for peer in PEERS:
        assert peer.requirements
        for requirement in peer.requirements:
            assert re.fullmatch(r"[A-Za-z0-9_-]+==[0-9][0-9.a-z]*", requirement)


def test_figures_from_elsewhere_have_every_cell_or_say_why_and_where():
    for row in ELSEWHERE:
        assert set(row.values) | set(row.missing) == {metric.key for metric in METRICS}
        assert "elsewhere" in row.note
        assert "2026" in row.note


def test_peers_are_found_by_name_in_the_tables_order():
    assert find_peers(("all",)) == PEERS
    assert [peer.name for peer in find_peers(("grpc", "rpyc"))] == ["rpyc", "grpc"]
    with pytest.raises(NotFoundError, match="rpyc, pyzmq"):
        find_peers(("rpyc", "nobody"))


# -- environments ---------------------------------------------------------------------------------------------------------------


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.delenv("REMORA_PEERS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_folder() == Path("/cache/remora/peers")
    monkeypatch.setenv("REMORA_PEERS", "/elsewhere")
    assert default_folder() == Path("/elsewhere")


def test_commands_name_the_venvs_python_and_what_the_peer_needs(tmp_path):
    by_name = {peer.name: peer for peer in PEERS}
    assert command(tmp_path, by_name["rpyc"])[0] == str(tmp_path / "rpyc/bin/python")
    assert command(tmp_path, by_name["mpi"])[:4] == [str(tmp_path / "mpi/bin/mpiexec"), "-n", "2", str(tmp_path / "mpi/bin/python")]
    assert command(tmp_path, by_name["ray"])[-1] == "alone"
    assert command(tmp_path, OURS[1])[0] == sys.executable


@pytest.mark.parametrize("text", ["", "[]", '{"requirements": ["it==1"]}', "{"])
def test_a_venv_without_its_record_is_not_installed(tmp_path, text):
    peer = Contestant("it", "it", "rpyc_peer", requirements=("it==2",))
    assert not installed(tmp_path, peer)
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / RECORD).write_text(text)
    assert not installed(tmp_path, peer)
    (tmp_path / "it" / RECORD).write_text('{"requirements": ["it==2"]}')
    assert installed(tmp_path, peer)
    assert installed_peers(tmp_path) == ()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_peer_that_cannot_be_installed_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    lines = []
    peer = Contestant("it", "it", "rpyc_peer", requirements=("remora-nobody-has-this==1.0",))
    assert install(tmp_path, [peer], lines.append) == ["it"]
    assert "installing" in lines[0]
    assert "not installed, and left out" in lines[1]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    lines = []
    assert install(tmp_path / "file", [PEERS[0]], lines.append) == ["rpyc"]
    assert "--peers-folder" in lines[-1]


def test_what_is_there_is_not_installed_again(tmp_path):
    (tmp_path / "rpyc").mkdir()
    (tmp_path / "rpyc" / RECORD).write_text(json.dumps({"requirements": list(PEERS[0].requirements)}))
    lines = []
    assert install(tmp_path, [PEERS[0]], lines.append) == []
    assert lines == ["rpyc: is there"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_peer_installs_and_answers(tmp_path):
    lines = []
    if install(tmp_path, find_peers(("rpyc",)), lines.append):
        pytest.skip(f"needs a package registry for pip: {lines[-1]}")
    row = measure(find_peers(("rpyc",))[0], tmp_path, QUICK)
    assert {key for key in row.missing if "512" not in key} == set()
    assert row.values["upload_64_mib"] > 0


# -- the command line -----------------------------------------------------------------------------------------------------------


def parsed(*words):
    parser = ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_arguments():
    assert parsed().install_peers is None
    assert parsed("--install-peers").install_peers == []
    assert parsed("--install-peers", "rpyc", "grpc").install_peers == ["rpyc", "grpc"]
    assert parsed("--json", "a.json", "--plot", "a.png").plot == Path("a.png")
    assert parsed("--growth", "--peers", "none").growth


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--peers", "nobody"), "there is no peer 'nobody'"),
        (("--install-peers", "nobody"), "there is no peer 'nobody'"),
        (("--json", "/nowhere/at/all.json"), "there is no folder"),
        (("--plot", "picture.txt"), "must end in .svg"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(words, says, capsys):
    assert main(["bench", *words]) == 2
    assert says in capsys.readouterr().err


# -- tables, JSON, picture ------------------------------------------------------------------------------------------------------


def printed(report, width=200):
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=width)
    for table in tables(report, width):
        console.print(table)
    return out.getvalue()


def test_the_comparison_has_everybody_and_every_unit():
    text = printed(REPORT)
    for title in ("remora, tcp", "RPyC", "PoCL-Remote 7.2 *", "ggml-rpc *"):
        assert title in text
    for metric in METRICS:
        assert metric.heading in text
        assert metric.unit in text
    assert max(len(line.rstrip()) for line in printed(REPORT, 132).splitlines()) <= 132


def test_a_narrow_terminal_gets_two_tables_and_no_cut_number():
    text = printed(REPORT, 100)
    assert text.count("RPyC") == 2
    assert "…" not in text


def test_an_empty_cell_has_a_note():
    notes = comparison_notes(REPORT.comparison)
    assert any("remora, tcp: nobody was killed (kill -9" in note for note in notes)
    assert "measured elsewhere" in notes[-1]


def test_a_note_that_holds_for_everybody_is_short():
    rows = [Figures(name, name, "peer", {}, {"noticed": "left out"}) for name in ("a", "b")]
    assert comparison_notes(rows) == ["everybody: left out (kill -9 of the server, until the client knows)"]


@pytest.mark.parametrize(("value", "text"), [(0, "0.00"), (0.034, "0.03"), (9.876, "9.88"), (45.678, "45.7"), (6177.2, "6177")])
def test_figures_have_three_digits(value, text):
    assert figure(value) == text


def test_json_says_everything_as_plain_values():
    whole = json.loads(json.dumps(REPORT.as_json()))
    assert whole["format"] == 2
    assert {metric["key"] for metric in whole["metrics"]} == {metric.key for metric in METRICS}
    assert whole["comparison"][0] == {
        "name": "tcp",
        "title": "remora, tcp",
        "kind": "remora",
        "values": {"rtt_p50": 12.3, "pipelined": 100.0},
        "missing": {"noticed": "nobody was killed"},
        "note": "",
    }
    assert whole["growth"] == [{"panel": "buffers", "line": "tcp", "points": [[10, 50.0], [100_000, 60.0]], "growth": 1.2}]


def test_counts_of_growth():
    assert decades(10, 100_000) == [10, 100, 1000, 10_000, 100_000]
    assert decades(1, 25) == [1, 10, 25]
    assert doublings(64) == [1, 2, 4, 8, 16, 32, 64]
    assert set(CURVES) == {"buffers", "sessions", "commands", "bytes"}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_picture_is_written(tmp_path, suffix):
    if find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib: pip install 'remora[bench]'")
    draw(REPORT, tmp_path / f"picture.{suffix}")
    data = (tmp_path / f"picture.{suffix}").read_bytes()
    assert data.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix])
    assert len(data) > 10_000


@pytest.mark.timeout(180)
@pytest.mark.parametrize("report", [Report(QUIET, True, 1.0, (), REPORT.comparison), Report(QUIET, True, 1.0, (), (), (LINE,))])
def test_a_picture_of_one_part(tmp_path, report):
    if find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib: pip install 'remora[bench]'")
    draw(report, tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size > 5000


def test_a_picture_of_nothing_is_refused(tmp_path):
    if find_spec("matplotlib") is None:
        pytest.skip("needs matplotlib: pip install 'remora[bench]'")
    with pytest.raises(UsageError, match="nothing to draw"):
        draw(Report(QUIET, True, 1.0, ()), tmp_path / "picture.svg")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("remora.bench.picture.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"remora\[bench\]"):
        check_picture(Path("picture.svg"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_comparison_and_growth_from_the_command_line(tmp_path):
    command_line = [sys.executable, "-m", "remora.cli", "bench", "--compare", "--growth", "--quick", "--peers", "none"]
    command_line += ["--json", str(tmp_path / "numbers.json")]
    environment = {**os.environ, "REMORA_BENCH_ARRAY_MIB": "1"}
    done = subprocess.run(command_line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    whole = json.loads((tmp_path / "numbers.json").read_text())
    assert {row["name"] for row in whole["comparison"]} == {row.name for row in (*FLOORS, *OURS, *ELSEWHERE)}
    for row in whole["comparison"]:
        if row["kind"] == "remora":
            assert {"rtt_p50", "pipelined", "upload_64_mib", "end_to_end", "ready"} <= set(row["values"])
    assert {(curve["panel"], curve["line"].split()[0]) for curve in whole["growth"]} == {
        (panel, carrier) for panel in CURVES for carrier in ("tcp", "unix", "shm")
    }
