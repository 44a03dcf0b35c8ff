"""README.md and examples/: what they show runs."""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from remora.cli.main import COMMANDS
from remora.testing.server import ServerProcess

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
LINES = re.findall(r"^    (\S.*)$", README, re.MULTILINE)
URI = "remote-tcp://127.0.0.1:5000"
TIMEOUT = 50


@pytest.fixture
def server():
    with ServerProcess() as running:
        yield running.uri


def run(*command, cwd=ROOT):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=cwd)


def test_the_first_commands_install_and_run_the_demo_and_the_tests():
    assert LINES[0].startswith("git clone ")
    assert LINES[1] == "python3 -m venv .venv && .venv/bin/pip install '.[demo]' && .venv/bin/remora demo"
    assert LINES[2] == "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/python -m pytest"


def test_every_remora_command_in_the_readme_exists():
    named = {line.split()[1] for line in LINES if line.startswith(".venv/bin/remora ")}
    assert named >= {"serve", "devices", "check"}
    assert named <= set(COMMANDS)


def test_there_are_snippets_and_one_is_remote():
    assert len(SNIPPETS) == 6
    assert sum(URI in snippet for snippet in SNIPPETS) == 1


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_the_snippets_run(number, request):
    code = SNIPPETS[number]
    if URI in code:
        code = code.replace(URI, request.getfixturevalue("server"))
    done = run("-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()] == []


def test_every_example_is_in_the_readme_and_short():
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert [path.name for path in examples] == [
        "async_pipeline.py",
        "image.py",
        "local.py",
        "pipeline.py",
        "remote.py",
        "two_devices.py",
    ]
    for path in examples:
        assert f"examples/{path.name}" in README
        assert len(path.read_text().splitlines()) < 60


def test_the_local_example():
    done = run("-W", "error", "examples/local.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert "added 1,000,000 numbers, exactly" in done.stdout


def test_the_remote_example(server):
    done = run("-W", "error", "examples/remote.py", server)
    assert (done.returncode, done.stderr) == (0, "")
    assert "multiplied two 512 x 512 matrices, exactly" in done.stdout


def test_the_pipeline_example(server, tmp_path):
    for uri in ("cpu", server):
        done = run("-W", "error", str(ROOT / "examples/pipeline.py"), uri, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "8 runs, exactly" in done.stdout
    assert (tmp_path / "pipeline.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "pipeline.json").read_text())["traceEvents"]


def test_the_example_of_two_devices(server):
    for uris in ((), ("cpu", server)):
        done = run("-W", "error", "examples/two_devices.py", *uris)
        assert (done.returncode, done.stderr) == (0, "")
        assert "65,536 sums, exactly" in done.stdout


def test_the_image_example(tmp_path):
    done = run("-W", "error", str(ROOT / "examples/image.py"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("before.png", "after.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_remote_example_tells_a_failure_from_a_result():
    with contextlib.closing(__import__("socket").socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        done = run("-c", f"import runpy, sys; sys.argv[1:] = ['remote-tcp://127.0.0.1:{sock.getsockname()[1]}']; import remora\n"
                   "find = remora.open; remora.open = lambda uri, retry: find(uri)\n"
                   "runpy.run_path('examples/remote.py', run_name='__main__')")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("UNAVAILABLE: connection refused")


@pytest.mark.parametrize("remote", [False, True])
def test_the_async_example_on_a_local_and_a_remote_device(remote, request):
    uri = request.getfixturevalue("server") if remote else "cpu"
    done = run("-W", "error", "examples/async_pipeline.py", uri)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"batch {number} is here, exactly" for number in range(8)]
