"""The test kernels (kernels/plain.c), their contracts, and a cpu device with them loaded."""

from pathlib import Path

import pytest

from remora.hal.executable import BindingRule, ConstantRule, GridRule, KernelInfo
from remora.hal.registry import open_devices

SOURCE = Path(__file__).parent / "kernels/plain.c"
OUT = (BindingRule("out"),)
PLAIN = (
    KernelInfo("empty"),
    KernelInfo(
        "add",
        tuple(BindingRule(name, constant="n", scale=4) for name in ("a", "b", "out")),
        (ConstantRule("n"),),
        grid=GridRule((1024, 1, 1)),
    ),
    KernelInfo("fail", OUT, (ConstantRule("which"), ConstantRule("code", "i32"))),
    KernelInfo("mark", OUT),
    KernelInfo("gate", (BindingRule("words", bytes=12),)),
    KernelInfo("scratch", OUT),
    KernelInfo("report", (BindingRule("out", bytes=64),), workgroup=(8, 1, 1)),
)


@pytest.fixture(scope="session")
def infos():
    """The contracts of the test kernels."""
    return PLAIN


@pytest.fixture(scope="session")
def plain(compile_library):
    """The artifact with the test kernels."""
    return compile_library(SOURCE)


@pytest.fixture
def cpu():
    """A cpu device with two threads."""
    (device,) = open_devices("cpu://?threads=2")
    with device:
        yield device


@pytest.fixture
def kernels(cpu, plain):
    """The test kernels, loaded on `cpu`."""
    executable = cpu.load_artifact(cpu.targets[-1], plain, PLAIN)
    yield executable
    executable.close()
