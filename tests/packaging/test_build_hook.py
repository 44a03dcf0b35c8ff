"""The build hook: a compiler that is there is used, one that is not comes as a wheel, and each wheel names its platform (D01)."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path):
    """A copy of what the hook reads."""
    folder = tmp_path / "src/remora/drivers/cpu"
    folder.mkdir(parents=True)
    shutil.copytree(ROOT / "src/remora/drivers/cpu/include", folder / "include")
    shutil.copy(ROOT / "src/remora/drivers/cpu/pool.c", folder)
    return tmp_path


@pytest.fixture
def hook(hook_module, tree):
    return hook_module.RemoraBuildHook(str(tree), {}, None, None, str(tree / "dist"), "wheel")


def programs(folder, *names):
    """A folder with executables of these names, to be the whole PATH."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("there", "chosen"),
    [(("clang", "gcc", "cc"), "cc"), (("clang", "gcc"), "gcc"), (("clang",), "clang")],
)
def test_the_first_compiler_on_the_path_is_taken(hook_module, hook, monkeypatch, tmp_path, there, chosen):
    folder = programs(tmp_path / "bin", *there)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    assert hook_module.found_compiler() == [str(folder / chosen)]
    assert hook.dependencies() == []


def test_cc_in_the_environment_comes_first(hook_module, hook, monkeypatch):
    monkeypatch.setenv("CC", "ccache 'my cc'")
    assert hook_module.found_compiler() == ["ccache", "my cc"]
    assert hook.dependencies() == []


def test_d01_without_a_compiler_the_build_asks_for_one(hook_module, hook, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin")))
    monkeypatch.delenv("CC", raising=False)
    assert hook.dependencies() == ["ziglang"]
    assert hook_module.zig_compiler()[:4] == [sys.executable, "-m", "ziglang", "cc"]


def test_elsewhere_the_package_builds_without_a_pool(hook_module, hook, monkeypatch):
    monkeypatch.setattr(hook_module, "on_linux", lambda: False)
    build_data = {"artifacts": []}
    hook.initialize("standard", build_data)
    assert build_data == {"artifacts": []}
    assert hook.dependencies() == []


def test_a_compiler_that_fails_is_told(hook, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", "cc")) + os.pathsep + "/bin")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(SystemExit, match=r"(?s)the worker pool did not compile: .*set CC to a working C compiler"):
        hook.initialize("standard", {"artifacts": []})


def test_d01_a_wheel_carries_the_pool_and_names_its_platform(hook_module, tmp_path):
    if hook_module.found_compiler() is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=copy_of_the_project(tmp_path / "project"), check=True, capture_output=True, timeout=50)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    cpu = "remora/drivers/cpu"
    assert {f"{cpu}/_pool.so", f"{cpu}/pool.c", f"{cpu}/include/remora_executable.h", "remora/py.typed"} <= names


def copy_of_the_project(target):
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target
