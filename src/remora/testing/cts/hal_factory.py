"""What the HAL conformance suite works with: the factory that a driver's author gives, and its tools."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from remora.testing.cts.background import background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from remora.hal.bundle import Bundle
    from remora.hal.device import Device
    from remora.hal.executable import Kernel
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = [
    "LONG",
    "SHORT",
    "SIZES",
    "HalFactory",
    "background",
    "blob",
    "device",
    "hold",
    "second",
    "second_queue",
    "slow",
    "words",
]

#: Seconds after which a wait has failed, and seconds in which nothing is expected to happen.
LONG = 30.0
SHORT = 0.02
KIB, MIB = 1 << 10, 1 << 20
#: Transfer sizes in bytes around every border that a driver or a link may have.
SIZES = (0, 1, 3, 4095, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 3)


class _Code:
    """The field `vector`: given a Bundle or None, it reads as a Bundle. A test that reads it where there is none is skipped."""

    def __get__(self, factory: HalFactory | None, owner: type[HalFactory]) -> Bundle:
        if factory is None:
            raise AttributeError("vector has no default")
        bundle: Bundle | None = vars(factory)["_vector"]
        if bundle is None:
            pytest.skip("there is no code that this device takes (HalFactory.vector)")
        return bundle

    def __set__(self, factory: HalFactory, bundle: Bundle | None) -> None:
        vars(factory)["_vector"] = bundle


@dataclass(frozen=True)
class HalFactory:
    """How the suite gets a device, and what it may ask of it.

    open: a fresh device; the suite closes it. vector: a bundle with the kernels of `samples.load("vector")` for it, or None when
    there is no code that it takes. faults: a bundle with the kernel `fail` of `samples.load("faults")`, or None when a kernel
    cannot report an error there.
    """

    open: Callable[[], Device]
    vector: _Code = _Code()
    faults: Bundle | None = None
    special: Bundle | None = None
    """A bundle with what `samples.load("special")` has, or None when code cannot be specialized there."""
    executes: bool = True
    """Whether kernels compute. The null driver's do not."""
    checks_artifacts: bool = True
    """Whether loading looks into the artifact."""
    out_of_memory: bool = True
    """Whether more than the heap's size can be asked for without harm to the machine that runs the suite."""
    lists_memory: bool = True
    """Whether an artifact's globals can be listed. The loaders of GPU vendors answer for one name at a time."""

    def need_kernels(self) -> None:
        """Skip the test when kernels do not compute."""
        if not self.executes:
            pytest.skip("this device's kernels do not compute (HalFactory.executes)")

    def need_special(self) -> Bundle:
        """The bundle of code that is specialized when it is loaded; skips the test when there is none."""
        if self.special is None:
            pytest.skip("this device has no code to specialize (HalFactory.special)")
        return self.special

    def need_faults(self) -> Bundle:
        """The bundle of kernels that fail; skips the test when there is none."""
        if self.faults is None:
            pytest.skip("this device has no kernel that fails (HalFactory.faults)")
        return self.faults


@pytest.fixture
def device(factory: HalFactory) -> Iterator[Device]:
    """A fresh device, closed at the end."""
    with factory.open() as opened:
        yield opened


@pytest.fixture
def second(factory: HalFactory) -> Iterator[Device]:
    """Another device beside `device`, closed at the end."""
    with factory.open() as opened:
        yield opened


def blob(size: int, seed: int = 1) -> bytes:
    """`size` bytes in which a lost, repeated or swapped part shows."""
    return random.Random(seed).randbytes(size)


def words(*values: int) -> bytes:
    """Little-endian 32-bit words."""
    return b"".join((value & 0xFFFFFFFF).to_bytes(4, "little") for value in values)


def hold(queue: Queue) -> Timepoint:
    """Stop a queue: what is submitted next waits. Signal the timepoint's semaphore to 1 to let it go on."""
    gate = queue.device.semaphore().at(1)
    queue.barrier(wait=gate)
    return gate


def second_queue(device: Device) -> Queue:
    """Another queue than the first; skips the test when there is none."""
    if len(device.queues) < 2:
        pytest.skip("this device has one queue")
    return device.queues[1]


def slow(kernel: Kernel, queue: Queue) -> Timepoint:
    """Start some milliseconds of work with the kernel `mix_u32`."""
    with queue.device.allocate(4) as source, queue.device.allocate(4) as target:
        return queue.dispatch(kernel, (1, 1, 1), [source, target], (1, 1_000_000))
