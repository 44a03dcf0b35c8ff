"""The device catalog inside ACCEPT: what a client may know without asking again. Mirrors hal.DeviceInfo, imports none of it.

catalog   devices u16 | devices x device
device    name text | driver text | queues u16 | targets u16 | heaps u16 | page size u32, 0 without virtual memory
          | targets x (family text, key text) | heaps x heap
          | extensions u16 | extensions x (namespace text, operations u16, operations x name text)
heap      name text | size u64 | largest allocation u64 | alignment u64
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from remora.errors import PeerError
from remora.wire.layout import Reader, Writer

__all__ = ["DeviceEntry", "HeapEntry", "read_catalog", "write_catalog"]

MAX_DEVICES: Final = 64
MAX_TARGETS: Final = 64
MAX_HEAPS: Final = 16
MAX_QUEUES: Final = 16
MAX_NAME: Final = 256
MAX_EXTENSIONS: Final = 16
MAX_OPERATIONS: Final = 64
MAX_PAGE: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class HeapEntry:
    """A memory heap; sizes in bytes."""

    name: str
    size: int
    max_allocation: int
    alignment: int


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device: its name, driver, (family, key) targets in order of preference, heaps, number of queues, and size of its pages.

    The page size is in bytes; 0 says that the device has no virtual memory.
    """

    name: str
    driver: str
    targets: tuple[tuple[str, str], ...]
    heaps: tuple[HeapEntry, ...]
    queue_count: int
    page_size: int = 0
    extensions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(namespace, names of its operations)"""


def write_catalog(writer: Writer, devices: tuple[DeviceEntry, ...]) -> Writer:
    """Append the catalog."""
    writer.u16(len(devices))
    for device in devices:
        writer.text(device.name, MAX_NAME).text(device.driver, MAX_NAME)
        writer.u16(device.queue_count).u16(len(device.targets)).u16(len(device.heaps)).u32(device.page_size)
        for family, key in device.targets:
            writer.text(family, MAX_NAME).text(key, MAX_NAME)
        for heap in device.heaps:
            writer.text(heap.name, MAX_NAME).u64(heap.size).u64(heap.max_allocation).u64(heap.alignment)
        writer.u16(len(device.extensions))
        for namespace, operations in device.extensions:
            writer.text(namespace, MAX_NAME).u16(len(operations))
            for operation in operations:
                writer.text(operation, MAX_NAME)
    return writer


def read_catalog(reader: Reader) -> tuple[DeviceEntry, ...]:
    """Read the catalog and the end of the frame. Raises PeerError when it is not valid: then no device is published (H04)."""
    count = reader.u16()
    if not 1 <= count <= MAX_DEVICES:
        raise PeerError(f"a catalog of {count} devices; 1 to {MAX_DEVICES} are possible")
    devices = tuple(_read_device(reader) for _ in range(count))
    reader.end()
    return devices


def _read_device(reader: Reader) -> DeviceEntry:
    name, driver = reader.text(MAX_NAME), reader.text(MAX_NAME)
    queues, targets, heaps, page_size = reader.u16(), reader.u16(), reader.u16(), reader.u32()
    if page_size > MAX_PAGE or page_size & page_size - 1:
        raise PeerError(f"device {name!r} has pages of {page_size} bytes: no power of two up to {MAX_PAGE}")
    if not 1 <= queues <= MAX_QUEUES or targets > MAX_TARGETS or heaps > MAX_HEAPS:
        raise PeerError(f"device {name!r} has {queues} queues, {targets} targets, {heaps} heaps: outside the limits")
    pairs = tuple((reader.text(MAX_NAME), reader.text(MAX_NAME)) for _ in range(targets))
    found = tuple(_read_heap(reader) for _ in range(heaps))
    extensions = reader.u16()
    if extensions > MAX_EXTENSIONS:
        raise PeerError(f"device {name!r} has {extensions} extensions; {MAX_EXTENSIONS} are possible")
    return DeviceEntry(name, driver, pairs, found, queues, page_size, tuple(_read_extension(reader) for _ in range(extensions)))


def _read_extension(reader: Reader) -> tuple[str, tuple[str, ...]]:
    namespace, operations = reader.text(MAX_NAME), reader.u16()
    if not namespace or operations > MAX_OPERATIONS:
        raise PeerError(f"an extension {namespace!r} of {operations} operations: it has a name and up to {MAX_OPERATIONS}")
    return namespace, tuple(reader.text(MAX_NAME) for _ in range(operations))


def _read_heap(reader: Reader) -> HeapEntry:
    heap = HeapEntry(reader.text(MAX_NAME), reader.u64(), reader.u64(), reader.u64())
    if heap.alignment == 0 or heap.alignment & heap.alignment - 1:
        raise PeerError(f"heap {heap.name!r} has the alignment {heap.alignment}, no power of two")
    return heap
