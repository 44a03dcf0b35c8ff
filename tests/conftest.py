"""Fixtures that every room's tests may use."""

import gc
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how loaded the machine is, and nothing else.
settings.register_profile("remora", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("remora")

# Failures inside the conformance suites are shown like those of any test. Before anything imports them.
pytest.register_assert_rewrite("remora.testing.cts")

SOURCE = Path(__file__).parents[1]


def pytest_collection_modifyitems(items):
    """Where the hot modules are compiled, nothing in them can be patched or traced."""
    from remora.base.compiled import is_compiled

    if is_compiled():
        skip = pytest.mark.skip(reason="patches or traces what is compiled here: pip install -e . without REMORA_COMPILE")
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(skip)


def pytest_collection_finish():
    """Many thousand collected tests live to the end: no `gc.collect()` of a leak check has to look through them."""
    gc.collect()
    gc.freeze()


COMPILERS = ("cc", "gcc", "clang")


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory):
    """compile_library(source, *flags) -> the bytes of a shared library, compiled once for each set of flags."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("kernels")
    include = SOURCE / "src/remora/drivers/cpu/include"
    done = {}

    def run(source, *flags):
        key = (source, flags)
        if key not in done:
            output = folder / f"{len(done)}.so"
            command = [compiler, "-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{include}", *flags, source, "-o", output]
            subprocess.run(command, check=True, timeout=50)
            done[key] = output.read_bytes()
        return done[key]

    return run


@pytest.fixture(scope="session")
def vulkan():
    """The facts of a Vulkan device; skips, and says what to install, where there is none."""
    import remora

    try:
        with remora.open("vulkan") as device:
            return device.info
    except remora.UnsupportedError as error:
        pytest.skip(str(error))
