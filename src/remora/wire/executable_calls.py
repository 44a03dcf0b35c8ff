"""Calls about executables.

EXECUTABLE_LOAD 0x20
    request    provisional id u64 | transfer id u64 | artifact bytes u64 | manifest bytes u32 | device u16 | source u16
               | family text | key text | constants u16 | that many words u32 | manifest | content
    response   canonical id u64, or 0 when the server does not have the content: send it

    source     INLINE 0   content is the artifact; transfer id 0
               BULK 1     content is empty; the artifact follows on bulk
               DIGEST 2   content is the SHA-256 of the artifact, 32 bytes; transfer id 0

EXECUTABLE_GLOBAL 0x21  a buffer that is the memory of a named global
    request    executable's canonical id u64 | name text
    response   canonical id u64
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from remora.base.ids import ResourceType
from remora.errors import PeerError, UsageError
from remora.wire.layout import Reader, Writer, is_id
from remora.wire.method import MAX_TARGET, Loaded, Method, answers_loaded

__all__ = [
    "BULK",
    "DIGEST",
    "DIGEST_BYTES",
    "EXECUTABLE_GLOBAL",
    "EXECUTABLE_LOAD",
    "INLINE",
    "MAX_ARTIFACT",
    "MAX_INLINE_ARTIFACT",
    "MAX_MANIFEST",
    "MAX_NAME",
    "MAX_WORDS",
    "METHODS",
    "Absent",
    "ExecutableGlobal",
    "ExecutableLoad",
]

EXECUTABLE_LOAD: Final = 0x20
EXECUTABLE_GLOBAL: Final = 0x21
#: Where the artifact is.
INLINE, BULK, DIGEST = 0, 1, 2
DIGEST_BYTES: Final = 32
#: The kernels' contracts, as manifest JSON.
MAX_MANIFEST: Final = 256 << 10
#: An artifact up to this size travels inside the request; a larger one over bulk, if the server does not have it.
MAX_INLINE_ARTIFACT: Final = 32 << 10
MAX_ARTIFACT: Final = 1 << 30
#: 32-bit words of specialization constants.
MAX_WORDS: Final = 1024
#: Bytes of a name: 256 characters of UTF-8.
MAX_NAME: Final = 1024


@dataclass(frozen=True, slots=True)
class ExecutableLoad:
    """Load an artifact of `size` bytes on a device under a provisional id.

    The bytes are `artifact`, or follow on bulk under `transfer_id`, or are what the server has with this `digest`; the other two
    are empty. `constants` are the 32-bit words that the code is specialized with.
    """

    resource: int
    device: int
    target: tuple[str, str]
    manifest: bytes
    size: int
    artifact: bytes = b""
    transfer_id: int = 0
    digest: bytes = b""
    constants: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """The server does not have the artifact that was named by its digest: nothing was loaded, and the artifact has to be sent."""


@dataclass(frozen=True, slots=True)
class ExecutableGlobal:
    """Make a buffer of a named global of a loaded executable."""

    executable: int
    name: str


Answer: TypeAlias = Loaded | Absent


def _write_load(writer: Writer, body: ExecutableLoad) -> Writer:
    if len(body.manifest) > MAX_MANIFEST:
        raise UsageError(
            f"a manifest of {len(body.manifest)} bytes, the limit is {MAX_MANIFEST}: describe fewer kernels in a bundle"
        )
    if len(body.constants) > MAX_WORDS:
        raise UsageError(f"{len(body.constants)} words of specialization constants, the limit is {MAX_WORDS}: put them in a buffer")
    source = _check_source(body)
    writer.u64(body.resource).u64(body.transfer_id).u64(body.size).u32(len(body.manifest)).u16(body.device).u16(source)
    writer.text(body.target[0], MAX_TARGET).text(body.target[1], MAX_TARGET).u16(len(body.constants))
    for word in body.constants:
        writer.u32(word)
    return writer.raw(body.manifest).raw(body.artifact).raw(body.digest)


def _check_source(body: ExecutableLoad) -> int:
    """Where the artifact of a request is. Raises UsageError unless it is in exactly one place, and fits there."""
    size = body.size
    if not 1 <= size <= MAX_ARTIFACT:
        raise UsageError(f"an artifact of {size} bytes; 1 to {MAX_ARTIFACT} are possible")
    source = BULK if body.transfer_id else DIGEST if body.digest else INLINE
    if source == INLINE and size > MAX_INLINE_ARTIFACT:
        raise UsageError(f"an artifact of {size} bytes inside a request; above {MAX_INLINE_ARTIFACT} it goes over bulk")
    wanted = (size if source == INLINE else 0, DIGEST_BYTES if source == DIGEST else 0)
    if (len(body.artifact), len(body.digest)) != wanted:
        raise UsageError(
            f"an artifact of {size} bytes with {len(body.artifact)} bytes here, the transfer {body.transfer_id} "
            f"and a digest of {len(body.digest)} bytes"
        )
    return source


def _read_load(reader: Reader) -> ExecutableLoad:
    resource, transfer_id, size, manifest_size, device = reader.u64(), reader.u64(), reader.u64(), reader.u32(), reader.u16()
    source = reader.u16()
    if not is_id(resource, ResourceType.EXECUTABLE, provisional=True):
        raise PeerError(f"a request to load under {resource:#x}, which is no provisional id of an executable")
    if not 1 <= size <= MAX_ARTIFACT or manifest_size > MAX_MANIFEST:
        raise PeerError(f"an artifact of {size} bytes with a manifest of {manifest_size}: outside the limits")
    if source > DIGEST or bool(transfer_id) != (source == BULK):
        raise PeerError(f"an artifact from the source {source} with the transfer {transfer_id}")
    if source == INLINE and size > MAX_INLINE_ARTIFACT:
        raise PeerError(f"an artifact of {size} bytes inside the request; above {MAX_INLINE_ARTIFACT} it goes over bulk")
    target = reader.text(MAX_TARGET), reader.text(MAX_TARGET)
    constants = _read_words(reader)
    manifest = bytes(reader.raw(manifest_size))
    artifact = bytes(reader.raw(size)) if source == INLINE else b""
    digest = bytes(reader.raw(DIGEST_BYTES)) if source == DIGEST else b""
    reader.end()
    return ExecutableLoad(resource, device, target, manifest, size, artifact, transfer_id, digest, constants)


def _read_words(reader: Reader) -> tuple[int, ...]:
    count = reader.u16()
    if count > MAX_WORDS:
        raise PeerError(f"{count} words of specialization constants, the limit is {MAX_WORDS}")
    reader.enough(count, 4)
    return tuple(reader.u32() for _ in range(count))


def _write_loaded(writer: Writer, body: Answer) -> Writer:
    return writer.u64(body.resource if isinstance(body, Loaded) else 0)


def _read_loaded(reader: Reader) -> Answer:
    resource = reader.u64()
    reader.end()
    if not resource:
        return Absent()
    if not is_id(resource, ResourceType.EXECUTABLE, provisional=False):
        raise PeerError(f"a response names {resource:#x}, which is no id of an executable")
    return Loaded(resource)


def _write_global(writer: Writer, body: ExecutableGlobal) -> Writer:
    return writer.u64(body.executable).text(body.name, MAX_NAME)


def _read_global(reader: Reader) -> ExecutableGlobal:
    executable, name = reader.u64(), reader.text(MAX_NAME)
    reader.end()
    if not is_id(executable, ResourceType.EXECUTABLE, provisional=False):
        raise PeerError(f"a global of {executable:#x}, which is no id of an executable")
    return ExecutableGlobal(executable, name)


METHODS: Final[dict[int, Method]] = {
    EXECUTABLE_LOAD: Method(ExecutableLoad, _write_load, _read_load, _write_loaded, _read_loaded),
    EXECUTABLE_GLOBAL: answers_loaded(ExecutableGlobal, _write_global, _read_global, ResourceType.BUFFER, "a buffer"),
}
