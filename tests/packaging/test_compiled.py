"""REMORA_COMPILE=1: the hot modules are compiled, and the installation passes the HAL suite over tcp (D01, H16)."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Seconds for the build, and for the suite, on a busy machine: a minute each on two cores that are free.
LONG = 600


@pytest.fixture
def hook(hook_module, tmp_path):
    return hook_module.RemoraBuildHook(str(tmp_path), {}, None, None, str(tmp_path / "dist"), "wheel")


def test_every_hot_module_is_there(hook_module):
    assert all((ROOT / "src/remora" / room / f"{name}.py").exists() for room, names in hook_module.HOT.items() for name in names)


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nobody_else_needs_mypyc(hook_module, hook, monkeypatch, value):
    monkeypatch.setattr(hook_module, "found_compiler", lambda: ["cc"])
    monkeypatch.delenv("REMORA_COMPILE", raising=False)
    if value is not None:
        monkeypatch.setenv("REMORA_COMPILE", value)
    assert hook.dependencies() == []


def test_who_asks_for_it_gets_mypyc(hook_module, hook, monkeypatch):
    monkeypatch.setattr(hook_module, "check_compilable", lambda: None)
    monkeypatch.setenv("REMORA_COMPILE", "1")
    assert hook.dependencies() == [hook_module.MYPYC]


def test_without_a_c_compiler_it_says_what_to_install(hook_module, hook, monkeypatch):
    monkeypatch.setattr(hook_module, "on_linux", lambda: True)
    monkeypatch.setattr(hook_module, "found_compiler", lambda: None)
    monkeypatch.setenv("REMORA_COMPILE", "1")
    with pytest.raises(SystemExit, match="needs a C compiler: apt-get install gcc"):
        hook.dependencies()


def test_without_headers_it_says_what_to_install(hook_module, hook, monkeypatch, tmp_path):
    monkeypatch.setattr(hook_module, "on_linux", lambda: True)
    monkeypatch.setattr(hook_module, "found_compiler", lambda: ["cc"])
    monkeypatch.setattr(hook_module.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("REMORA_COMPILE", "1")
    with pytest.raises(SystemExit, match="needs Python's headers: apt-get install python3-dev"):
        hook.dependencies()


def test_where_mypyc_is_no_help_it_says_so(hook_module, hook, monkeypatch):
    monkeypatch.setattr(hook_module, "on_linux", lambda: False)
    monkeypatch.setenv("REMORA_COMPILE", "1")
    with pytest.raises(SystemExit, match="for CPython with a GIL on Linux"):
        hook.dependencies()


def test_what_an_earlier_editable_install_compiled_goes(hook_module, hook, monkeypatch, tmp_path):
    monkeypatch.setattr(hook_module, "on_linux", lambda: False)
    monkeypatch.delenv("REMORA_COMPILE", raising=False)
    folder = tmp_path / "src/remora/link"
    folder.mkdir(parents=True)
    old = [tmp_path / "src/remora__mypyc.cpython-311-x86_64-linux-gnu.so", folder / "link.cpython-312-x86_64-linux-gnu.so"]
    kept = [folder / "link.py", folder / "_other.so"]
    for path in (*old, *kept):
        path.touch()
    hook.initialize("editable", {"artifacts": []})
    assert [path.exists() for path in (*old, *kept)] == [False, False, True, True]


@pytest.fixture(scope="module")
def compiled_python(hook_module, tmp_path_factory):
    """The Python of an environment that has the compiled wheel, and the other packages of this one."""
    if not hook_module.on_linux() or hook_module.found_compiler() is None:
        pytest.skip("needs Linux and a C compiler: apt-get install gcc libc6-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("needs Python's headers: apt-get install python3-dev")
    for name in ("mypyc", "setuptools", "pip"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs mypy, setuptools and pip here: pip install '{hook_module.MYPYC}' pip")
    place = tmp_path_factory.mktemp("compiled")
    project = place / "project"
    shutil.copytree(ROOT / "src", project / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "LICENSE"):
        shutil.copy(ROOT / name, project)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    run(build, cwd=project, env={**os.environ, "REMORA_COMPILE": "1"})
    (wheel,) = place.glob("remora-*-cp3*.whl")
    assert not list((project / "src").rglob("*.cpython-*.so"))
    run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")])
    python = place / "venv/bin/python"
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)])
    (site,) = (place / "venv/lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(command, cwd=None, env=None):
    done = subprocess.run(command, cwd=cwd, env=env, check=False, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


#: Runs the suite against a server of the same installation, whose output is read all the time.
SUITE = """
import subprocess, sys
from remora.testing.server import ServerProcess

with ServerProcess() as server:
    suite = ["-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--pyargs", "remora.testing.cts"]
    sys.exit(subprocess.call([sys.executable, *suite, f"--remora-device={server.uri}"]))
"""


@pytest.mark.slow
@pytest.mark.timeout(3 * LONG)
def test_the_compiled_wheel_passes_the_hal_suite_over_tcp(compiled_python, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    assert run([str(compiled_python), "-m", "remora.cli", "--version"], tmp_path, environment).endswith(", compiled\n")
    assert " passed" in run([str(compiled_python), "-c", SUITE], tmp_path, environment)
