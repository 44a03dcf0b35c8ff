"""libamdhip64 as this driver uses it: found by name, results checked, failures as errors of remora.

Every call releases the interpreter's lock. The current GPU belongs to a thread, and other libraries of the process change it too,
so each entry of the driver says which one it means (`Runtime.enter`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any, Final

from remora.errors import DeviceError, DeviceLostError, Error, OutOfMemoryError, UnsupportedError

__all__ = ["NOT_READY", "OUT_OF_MEMORY", "Runtime"]

#: Names another file in the library's place.
LIBRARY_VARIABLE: Final = "REMORA_HIP_LIBRARY"
NAMES: Final = (*(f"libamdhip64.so{end}" for end in (".7", ".6", ".5", "")), "/opt/rocm/lib/libamdhip64.so")

OUT_OF_MEMORY, NOT_READY = 2, 600
#: hipErrorNoDevice and hipErrorInvalidDevice: the runtime starts with the second where it may not open /dev/kfd.
NO_GPU: Final = frozenset({100, 101})
#: Failures after which the GPU does nothing more for this process.
LOST: Final = frozenset({
    4,  # hipErrorDeinitialized
    214,  # hipErrorECCNotCorrectable
    700,  # hipErrorIllegalAddress
    702,  # hipErrorLaunchTimeOut
    709,  # hipErrorContextIsDestroyed
    710,  # hipErrorAssert
    719,  # hipErrorLaunchFailure
})  # fmt: skip

#: One function under two names: the layout of what it writes is that of ROCm 6 under the first, an older one under the second.
PROPERTIES: Final = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
#: Several times what any version of it writes.
PROPERTIES_BYTES: Final = 16 << 10

_PLACE: Final = POINTER(c_void_p)
#: Function -> types of its arguments. All return an error code. Addresses of the GPU are pointers in HIP.
FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "hipInit": (c_uint,),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipSetDevice": (c_int,),
    "hipDeviceGetName": (c_char_p, c_int, c_int),
    "hipDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "hipMemGetInfo": (POINTER(c_size_t), POINTER(c_size_t)),
    "hipMalloc": (_PLACE, c_size_t),
    "hipFree": (c_void_p,),
    "hipHostMalloc": (_PLACE, c_size_t, c_uint),
    "hipHostFree": (c_void_p,),
    "hipMemcpyHtoD": (c_void_p, c_void_p, c_size_t),
    "hipMemcpyHtoDAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "hipMemcpyDtoHAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "hipMemcpyDtoDAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "hipMemsetD8Async": (c_void_p, c_ubyte, c_size_t, c_void_p),
    "hipMemsetD16Async": (c_void_p, c_ushort, c_size_t, c_void_p),
    "hipMemsetD32Async": (c_void_p, c_uint, c_size_t, c_void_p),
    "hipStreamCreateWithFlags": (_PLACE, c_uint),
    "hipStreamDestroy": (c_void_p,),
    "hipStreamQuery": (c_void_p,),
    "hipStreamSynchronize": (c_void_p,),
    "hipStreamWriteValue64": (c_void_p, c_void_p, c_uint64, c_uint),
    "hipModuleLoadData": (_PLACE, c_void_p),
    "hipModuleUnload": (c_void_p,),
    "hipModuleGetFunction": (_PLACE, c_void_p, c_char_p),
    "hipModuleGetGlobal": (_PLACE, POINTER(c_size_t), c_void_p, c_char_p),
    "hipModuleLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
}


class Runtime:
    """The library, and the GPU of it that one device is."""

    def __init__(self) -> None:
        self.ordinal = 0
        library = _library()
        #: The functions by name, unchecked: what they return is an error code.
        self.raw: dict[str, Callable[..., int]] = {name: _function(library, name) for name in FUNCTIONS}
        self._describe = [_function(library, name) for name in ("hipGetErrorName", "hipGetErrorString")]
        for function in self._describe:
            function.argtypes, function.restype = (c_int,), c_char_p
        self._properties = _function(library, PROPERTIES[0] if hasattr(library, PROPERTIES[0]) else PROPERTIES[1])
        self._properties.argtypes = (c_char_p, c_int)

    def call(self, name: str, *args: Any) -> None:
        """Call a function. Raises the error that its code stands for."""
        code = self.raw[name](*args)
        if code:
            raise self.failure(code, name)

    def made(self, name: str, *args: Any) -> int:
        """What a function writes to the pointer that is its first argument."""
        place = c_void_p()
        self.call(name, byref(place), *args)
        return place.value or 0

    def count(self) -> int:
        """How many GPUs there are. Raises UnsupportedError when the runtime does not start."""
        found = c_int()
        code = self.raw["hipInit"](0) or self.raw["hipGetDeviceCount"](byref(found))
        if code and code not in NO_GPU:
            raise UnsupportedError(f"ROCm's runtime does not start: {self.failure(code, 'hipInit').message}; `rocminfo` says more")
        return 0 if code else found.value

    def enter(self) -> None:
        """Make the GPU the calling thread's, which every other call relies on."""
        self.call("hipSetDevice", self.ordinal)

    def properties(self) -> bytes:
        """What the runtime tells of the GPU, in a layout that differs between its versions."""
        room = ctypes.create_string_buffer(PROPERTIES_BYTES)
        code = self._properties(room, self.ordinal)
        if code:
            raise self.failure(code, PROPERTIES[1])
        return room.raw

    def failure(self, code: int, what: str) -> Error:
        """The error that a code stands for."""
        name, text = ((function(code) or b"unknown").decode(errors="replace") for function in self._describe)
        message = f"{what}: {name} ({text})"
        if code == OUT_OF_MEMORY:
            return OutOfMemoryError(message)
        if code in LOST:
            return DeviceLostError(f"{message}: the GPU is lost to this process; end it and open the device again")
        return DeviceError(message)


def _library() -> ctypes.CDLL:
    """The vendor's library. Raises UnsupportedError that says what to install."""
    chosen = os.environ.get(LIBRARY_VARIABLE)
    why = ""
    for name in [chosen] if chosen else NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            why = why or str(error)
    setting = f" ({LIBRARY_VARIABLE} names {chosen})" if chosen else ""
    raise UnsupportedError(
        f"the hip driver needs ROCm's runtime, libamdhip64.so, which does not load{setting}: {why}. Install the package "
        "hip-runtime-amd (or rocm-hip-runtime) of AMD, or open a GPU of another machine, remote-tcp://host:port"
    )


def _function(library: ctypes.CDLL, name: str) -> Any:
    """Raises UnsupportedError for a library that is too old to have it."""
    try:
        function = getattr(library, name)
    except AttributeError:
        raise UnsupportedError(f"{library._name} has no {name}: install ROCm 5 or newer") from None
    function.argtypes, function.restype = FUNCTIONS.get(name, ()), c_int
    return function
