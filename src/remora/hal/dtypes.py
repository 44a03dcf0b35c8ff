"""Element types by name: how large an item is, and what DLPack and NumPy call it (H20).

A device moves bytes; the type is metadata that an array keeps. So types are here that neither NumPy nor the buffer protocol can
say, such as those of the package ml_dtypes: they go in, come out and are told apart by name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from remora.errors import UsageError

__all__ = ["DTYPES", "DType", "dtype_name", "dtype_of"]


class DType(NamedTuple):
    """An element type: bytes an item, DLPack type code (-1 where it has none), and NumPy's spelling (empty where it has none)."""

    size: int
    code: int
    typestr: str
    long: str
    """The name that NumPy, ml_dtypes and torch give it."""


DTYPES: dict[str, DType] = {
    "i1": DType(1, 0, "|i1", "int8"),
    "i2": DType(2, 0, "<i2", "int16"),
    "i4": DType(4, 0, "<i4", "int32"),
    "i8": DType(8, 0, "<i8", "int64"),
    "u1": DType(1, 1, "|u1", "uint8"),
    "u2": DType(2, 1, "<u2", "uint16"),
    "u4": DType(4, 1, "<u4", "uint32"),
    "u8": DType(8, 1, "<u8", "uint64"),
    "f2": DType(2, 2, "<f2", "float16"),
    "f4": DType(4, 2, "<f4", "float32"),
    "f8": DType(8, 2, "<f8", "float64"),
    "bf16": DType(2, 4, "", "bfloat16"),
    "c8": DType(8, 5, "<c8", "complex64"),
    "c16": DType(16, 5, "<c16", "complex128"),
    "b1": DType(1, 6, "|b1", "bool"),
    "f8_e3m4": DType(1, 7, "", "float8_e3m4"),
    "f8_e4m3": DType(1, 8, "", "float8_e4m3"),
    "f8_e4m3b11fnuz": DType(1, 9, "", "float8_e4m3b11fnuz"),
    "f8_e4m3fn": DType(1, 10, "", "float8_e4m3fn"),
    "f8_e4m3fnuz": DType(1, 11, "", "float8_e4m3fnuz"),
    "f8_e5m2": DType(1, 12, "", "float8_e5m2"),
    "f8_e5m2fnuz": DType(1, 13, "", "float8_e5m2fnuz"),
    "f8_e8m0fnu": DType(1, 14, "", "float8_e8m0fnu"),
    # One item in each byte, as ml_dtypes has them: not the packed form that DLPack means.
    "f6_e2m3fn": DType(1, -1, "", "float6_e2m3fn"),
    "f6_e3m2fn": DType(1, -1, "", "float6_e3m2fn"),
    "f4_e2m1fn": DType(1, -1, "", "float4_e2m1fn"),
    "int4": DType(1, -1, "", "int4"),
    "uint4": DType(1, -1, "", "uint4"),
    "int2": DType(1, -1, "", "int2"),
    "uint2": DType(1, -1, "", "uint2"),
}
_LONG = {dtype.long: name for name, dtype in DTYPES.items()}
#: Formats of the buffer protocol (struct codes in native order); `l` and `q` have the sizes of the platform.
_FORMATS = {
    "c": "u1", "b": "i1", "B": "u1", "?": "b1", "h": "i2", "H": "u2", "i": "i4", "I": "u4", "q": "i8", "Q": "u8",
    "e": "f2", "f": "f4", "d": "f8", "Zf": "c8", "Zd": "c16",
}  # fmt: skip


def dtype_name(told: Any) -> str:
    """The key of DTYPES for "f4", "float32", `np.dtype("f4")`, `ml_dtypes.bfloat16`, `torch.float32`. Raises UsageError."""
    if isinstance(told, type):
        told = told.__name__
    text = str(told).rpartition(".")[2].lstrip("<|=")
    name = text if text in DTYPES else _LONG.get(text.removesuffix("_"), "")
    if not name:
        raise UsageError(f"{str(told)!r} is no element type; known: {', '.join(DTYPES)}, and their long names such as float32")
    return name


def dtype_of(data: Any) -> str | None:
    """The element type of an array or of a buffer-protocol object; None when it does not say, as a DLPack tensor of no library."""
    told = getattr(data, "dtype", None)
    if told is not None:
        return dtype_name(told)
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError):
        return None
    code = view.format.lstrip("@=<") if view.format else "B"
    if code in {"l", "L"}:
        return f"{'i' if code == 'l' else 'u'}{view.itemsize}"
    if code not in _FORMATS:
        raise UsageError(f"items of the format {view.format!r} are no element type; give dtype=, or an array with native numbers")
    return _FORMATS[code]
