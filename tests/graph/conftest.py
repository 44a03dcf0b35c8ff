"""Runtimes over a real processor, and over a device that a test steps by hand."""

import pytest
from tests.graph.stepped import SteppedDevice

import remora
from remora import samples
from remora.graph import Runtime, RuntimeOptions


@pytest.fixture
def device():
    with remora.open("cpu") as opened:
        yield opened


@pytest.fixture
def runtime(device):
    with Runtime(device) as made:
        yield made


@pytest.fixture
def vector(device):
    """The kernels add_i32, mix_u32, empty, fill_index and saxpy_f32."""
    return device.load(samples.load("vector"))


@pytest.fixture
def stepped():
    with SteppedDevice() as made:
        yield made


@pytest.fixture
def domain(stepped):
    """domain(**options) -> a runtime over the stepped device. What is pending at the end is run."""
    made = []

    def make(**options):
        made.append(Runtime(stepped, options=RuntimeOptions(**options)))
        return made[-1]

    yield make
    for each in made:
        stepped.run()
        each.close(timeout=10)
