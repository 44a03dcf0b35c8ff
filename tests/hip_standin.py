"""A stand-in for libamdhip64 that has no GPU (drivers/hip/standin.c). It proves the hip driver's logic, and nothing of a GPU."""

import ctypes
from pathlib import Path

import pytest

import remora

SOURCE = Path(__file__).parent / "drivers/hip/standin.c"
FLAGS = ("-pthread", "-ffp-contract=off", "-fvisibility=hidden")
GPU = "gfx90a:sramecc+:xnack-"


class Standin:
    """Its controls. GPUs are named by what ROCm would call them."""

    def __init__(self, path):
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.standin_bytes.restype = ctypes.c_uint64

    def reset(self, devices=1, arch=GPU, writes_values=True):
        self._library.standin_reset(devices, arch.encode(), writes_values)

    def break_with(self, code):
        """Every call that looks at the GPU gives this code from now on, and nothing is done any more."""
        self._library.standin_break(code)

    def break_at_launch(self, code):
        """The next kernel ends with this code when its turn has come."""
        self._library.standin_break_at_launch(code)

    def hold(self, on):
        """Streams do nothing while this is on."""
        self._library.standin_hold(on)

    def bytes(self, device=0):
        """Device memory that is allocated."""
        return self._library.standin_bytes(device)

    @property
    def streams(self):
        return self._library.standin_streams()

    @property
    def pinned(self):
        """Pieces of pinned memory that are allocated."""
        return self._library.standin_ranges(1)


def built(compile_library, folder, *flags):
    """The path of the library."""
    path = folder / "libstandin.so"
    path.write_bytes(compile_library(SOURCE, *FLAGS, *flags))
    return path


@pytest.fixture(scope="session")
def standin_library(compile_library, tmp_path_factory):
    return Standin(built(compile_library, tmp_path_factory.mktemp("standin")))


@pytest.fixture
def standin(standin_library, monkeypatch):
    """The driver finds it instead of ROCm's runtime, as one GPU that works."""
    monkeypatch.setenv("REMORA_HIP_LIBRARY", str(standin_library.path))
    standin_library.reset()
    yield standin_library
    standin_library.reset()


@pytest.fixture
def gpu(standin):
    """The one GPU of the stand-in."""
    with remora.open("hip") as device:
        yield device
        standin.hold(False)
