"""A stand-in for libcuda.so.1 that has no GPU (drivers/cuda/standin.c). It proves the cuda driver's logic, and nothing of a GPU.

cuda-bindings opens libcuda.so.1 by its name, once for a process and for good: a process has the stand-in or NVIDIA's driver. One
gets the stand-in by loading it from its folder before: the system's loader then takes that for the name. Servers and other programs
find it through LD_LIBRARY_PATH. Where NVIDIA's driver is installed the tests that need the stand-in are skipped, since the tests of
the real one may run in the same process, and show more. Outside of those tests the stand-in has no GPU to offer.
"""

import ctypes
import gc
from importlib.util import find_spec
from pathlib import Path

import pytest

import remora

SOURCE = Path(__file__).parent / "drivers/cuda/standin.c"
FLAGS = ("-pthread", "-ffp-contract=off", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1")
PINNED, REGISTERED, MAPPED = 1, 2, 3


class Standin:
    """Its controls."""

    def __init__(self, path):
        self.folder = path.parent
        self._library = ctypes.CDLL(str(path))
        self._library.standin_bytes.restype = ctypes.c_uint64

    def reset(self, devices=1, old=False):
        """This many GPUs that work. Old ones write no values from their streams."""
        self._library.standin_reset(devices, old)

    def break_with(self, code):
        """Every call that looks at the GPU gives this code from now on, and nothing is done any more."""
        self._library.standin_break(code)

    def break_at_launch(self, code):
        """The next kernel ends with this code when its turn has come."""
        self._library.standin_break_at_launch(code)

    def fail(self, name, code, after=0):
        """The next call of this function, behind `after` others, gives this code and does nothing."""
        self._library.standin_fail(name.encode(), after, code)

    def hold(self, on):
        """Streams do nothing while this is on, except that memory comes and goes."""
        self._library.standin_hold(on)

    @property
    def broken(self):
        """The code that every call gives, or 0."""
        return self._library.standin_broken()

    def bytes(self, device=0):
        """Device memory that is allocated."""
        return self._library.standin_bytes(device)

    def held(self):
        """Everything that has to be given back, by its name, where there is any."""
        library = self._library
        counts = {
            "bytes": self.bytes(0) + self.bytes(1),
            "streams": library.standin_streams(),
            "pinned": library.standin_ranges(PINNED),
            "registered": library.standin_ranges(REGISTERED),
            "mappings": library.standin_ranges(MAPPED),
            "physical": library.standin_pieces(),
            "addresses": library.standin_reserved(),
            "graphs": library.standin_graphs(),
            "events": library.standin_events(),
            "modules": library.standin_modules(),
            "contexts": library.standin_contexts(),
        }
        return {name: count for name, count in counts.items() if count}


def is_standin(library):
    """Whether what was loaded as libcuda.so.1 is one of these."""
    return hasattr(library, "standin_reset")


def need_room():
    """Skip the test where the stand-in cannot be loaded, and say why."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        pytest.skip("cuda-bindings is not installed: pip install 'remora[cuda]'")
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    if not is_standin(library):
        pytest.skip("NVIDIA's driver is here, and a process has one libcuda.so.1: run the real tests, -m cuda")


#: The one of this process, though each module that imports the fixture has a fixture of its own.
LOADED = []


@pytest.fixture(scope="session")
def standin_library(compile_library, tmp_path_factory):
    if not LOADED:
        need_room()
        path = tmp_path_factory.mktemp("standin") / "libcuda.so.1"
        path.write_bytes(compile_library(SOURCE, *FLAGS))
        LOADED.append(Standin(path))
        LOADED[0].reset(devices=0)
    return LOADED[0]


@pytest.fixture(scope="module")
def standin_module(standin_library):
    """One GPU that works, here and in the programs that the module's tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(standin_library.folder), prepend=":")
        standin_library.reset()
        yield standin_library
        standin_library.reset(devices=0)


@pytest.fixture
def standin(standin_module):
    """The same, mended before and behind each test, which has to give everything back. What a lost context had is gone."""
    standin_module.reset()
    yield standin_module
    gc.collect()
    broken, held = standin_module.broken, standin_module.held()
    standin_module.reset()
    assert broken or not held, held


@pytest.fixture
def gpu(standin):
    """The one GPU of the stand-in."""
    with remora.open("cuda") as device:
        yield device
        standin.hold(False)
