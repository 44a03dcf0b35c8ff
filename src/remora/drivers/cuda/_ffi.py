"""cuda-bindings as this driver uses it: results checked, failures as errors of remora.

Each thread has to make the context its own (`Context.enter`). A failure that ends the context (an illegal access, say) is sticky:
every later call of the process returns it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol
from weakref import WeakSet

from cuda.bindings import driver

from remora.errors import DeviceError, DeviceLostError, Error, OutOfMemoryError, UnsupportedError

__all__ = ["Context", "Resident", "attribute", "call", "driver", "failure", "initialize"]

_Result = driver.CUresult
OUT_OF_MEMORY: Final = _Result.CUDA_ERROR_OUT_OF_MEMORY
#: Failures after which the context is of no use.
LOST: Final = frozenset(
    int(getattr(_Result, f"CUDA_ERROR_{name}"))
    for name in (
        "ILLEGAL_ADDRESS",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "ASSERT",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "ECC_UNCORRECTABLE",
        "CONTEXT_IS_DESTROYED",
    )
)


def call(function: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
    """What a function of the driver returns beside its result code, which is checked: nothing, one value or a tuple."""
    code, *values = function(*args)
    if code:
        raise failure(code, function.__name__)
    return values[0] if len(values) == 1 else tuple(values)


def failure(code: Any, what: str) -> Error:
    """The error that a result code stands for."""
    name, text = (_text(describe(code)) for describe in (driver.cuGetErrorName, driver.cuGetErrorString))
    message = f"{what}: {name} ({text})"
    if code == OUT_OF_MEMORY:
        return OutOfMemoryError(message)
    if int(code) in LOST:
        return DeviceLostError(f"{message}: the CUDA context is lost; close the device and open it again")
    return DeviceError(message)


def _text(answer: tuple[Any, Any]) -> str:
    code, text = answer
    return "unknown" if code else text.decode()


def initialize() -> None:
    """Start the vendor's driver in this process. Raises UnsupportedError that says what is missing."""
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:  # no libcuda.so.1 on this machine
        raise UnsupportedError(
            f"the cuda driver needs NVIDIA's driver (libcuda.so.1), which is not here: {error} Install it, "
            "or open a GPU of another machine, remote-tcp://host:port"
        ) from None
    if code:
        raise UnsupportedError(f"NVIDIA's driver does not start: {failure(code, 'cuInit').message}; `nvidia-smi` says more")


def attribute(device: Any, name: str) -> int:
    """An attribute of a GPU, such as `COMPUTE_CAPABILITY_MAJOR`."""
    return int(call(driver.cuDeviceGetAttribute, getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device))


#: Which context `enter` has made each thread's.
_current = threading.local()


class Resident(Protocol):
    """What a context has to be there for: code, graphs."""

    def end(self) -> None:
        """Give it back, in the context. Safe to repeat."""


class Context:
    """The primary context of a GPU, shared with whatever else of the process uses it, so it may live on when it is given back."""

    def __init__(self, device: Any) -> None:
        self.device = device
        #: What ends with it here, if it did not before.
        self.residents: WeakSet[Resident] = WeakSet()
        self.handle = call(driver.cuDevicePrimaryCtxRetain, device)

    def enter(self) -> None:
        """Make it the calling thread's, which every other call relies on."""
        if getattr(_current, "context", None) is not self:
            call(driver.cuCtxSetCurrent, self.handle)
            _current.context = self

    def enter_to_end(self) -> None:
        """As `enter`, to give things back: that goes on where the context is lost."""
        with suppress(Error):
            self.enter()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The calling thread's for a moment, to give things back: the collector may come while the thread is in another one."""
        (code,) = driver.cuCtxPushCurrent(self.handle)
        try:
            yield
        finally:
            if not code:
                driver.cuCtxPopCurrent()

    def close(self) -> None:
        """Give it back, and what is left in it before."""
        for resident in tuple(self.residents):
            resident.end()
        driver.cuDevicePrimaryCtxRelease(self.device)
