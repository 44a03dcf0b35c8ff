"""The device catalog inside ACCEPT: what a client may know without asking again. Mirrors hal.DeviceInfo, imports none of it.

catalog   devices u16 | devices x device
device    name text | driver text | queues u16 | targets u16 | heaps u16 | targets x (family text, key text) | heaps x heap
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


@dataclass(frozen=True, slots=True)
class HeapEntry:
    """A memory heap; sizes in bytes."""

    name: str
    size: int
    max_allocation: int
    alignment: int


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """A device: its name, driver, (family, key) targets in order of preference, heaps, and number of queues."""

    name: str
    driver: str
    targets: tuple[tuple[str, str], ...]
    heaps: tuple[HeapEntry, ...]
    queue_count: int


def write_catalog(writer: Writer, devices: tuple[DeviceEntry, ...]) -> Writer:
    """Append the catalog."""
    writer.u16(len(devices))
    for device in devices:
        writer.text(device.name, MAX_NAME).text(device.driver, MAX_NAME)
        writer.u16(device.queue_count).u16(len(device.targets)).u16(len(device.heaps))
        for family, key in device.targets:
            writer.text(family, MAX_NAME).text(key, MAX_NAME)
        for heap in device.heaps:
            writer.text(heap.name, MAX_NAME).u64(heap.size).u64(heap.max_allocation).u64(heap.alignment)
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
    queues, targets, heaps = reader.u16(), reader.u16(), reader.u16()
    if not 1 <= queues <= MAX_QUEUES or targets > MAX_TARGETS or heaps > MAX_HEAPS:
        raise PeerError(f"device {name!r} has {queues} queues, {targets} targets, {heaps} heaps: outside the limits")
    pairs = tuple((reader.text(MAX_NAME), reader.text(MAX_NAME)) for _ in range(targets))
    return DeviceEntry(name, driver, pairs, tuple(_read_heap(reader) for _ in range(heaps)), queues)


def _read_heap(reader: Reader) -> HeapEntry:
    heap = HeapEntry(reader.text(MAX_NAME), reader.u64(), reader.u64(), reader.u64())
    if heap.alignment == 0 or heap.alignment & heap.alignment - 1:
        raise PeerError(f"heap {heap.name!r} has the alignment {heap.alignment}, no power of two")
    return heap
