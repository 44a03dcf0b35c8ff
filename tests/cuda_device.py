"""Whether there is an NVIDIA GPU here, and how the HAL suite gets it."""

import ctypes
from importlib.util import find_spec

import pytest
from tests.cuda_standin import is_standin

import remora
from remora import samples
from remora.testing.cts.hal_factory import HalFactory

#: Another test may have all of the GPU's memory for a moment.
RETRY = 30.0


def need_cuda():
    """Skip the test where no GPU can be opened, and say what to install."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        pytest.skip("cuda-bindings is not installed: pip install 'remora[cuda]'")
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        library = None
    if library is None or is_standin(library):
        pytest.skip("there is no NVIDIA driver here (libcuda.so.1): run this on a machine with a GPU")


def factory_of(uri):
    """How the suite opens the GPU at a URI. A GPU's kernels report no status."""
    return HalFactory(
        open=lambda: remora.open(uri, retry=RETRY),
        vector=samples.load("vector"),
        special=samples.load("special"),
        lists_memory=False,
    )
