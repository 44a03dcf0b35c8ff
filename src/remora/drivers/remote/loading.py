"""Giving the server an executable: inside the request, by what it has already, or over bulk (H19)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from remora.base.ids import ResourceType
from remora.drivers.remote.calls import Call
from remora.errors import BusyError
from remora.wire.executable_calls import MAX_INLINE_ARTIFACT, Absent, ExecutableLoad

if TYPE_CHECKING:
    from remora.drivers.remote.host import RemoteHost
    from remora.hal.target import Target

__all__ = ["load_executable"]


def load_executable(
    host: RemoteHost, device: int, target: Target, manifest: bytes, artifact: memoryview, constants: tuple[int, ...]
) -> int:
    """Load an executable and return its id. Raises what the server found wrong with it.

    One round trip for an artifact that fits into the request, or that the server's cache has; another when it has to be sent.
    What was closed before may still count there, because releases travel on the queue lane: a quota is asked again behind them.
    """
    try:
        return _load(host, device, target, manifest, artifact, constants)
    except BusyError:
        host.flush_garbage()
        host.devices[device].event().query()  # answered on the queue lane, behind every release
        return _load(host, device, target, manifest, artifact, constants)


def _load(host: RemoteHost, device: int, target: Target, manifest: bytes, artifact: memoryview, constants: tuple[int, ...]) -> int:
    size = artifact.nbytes

    def load(content: bytes, transfer_id: int, digest: bytes) -> int:
        """The id, or 0 when the server does not have what the digest names."""
        call = Call()
        made = host.calls.make(
            call,
            ResourceType.EXECUTABLE,
            lambda resource: ExecutableLoad(
                resource, device, (target.family, target.key), manifest, size, content, transfer_id, digest, constants
            ),
        )
        if transfer_id:
            with host.link.step:
                host.send(transfer_id, artifact)
        try:
            answer = host.calls.answer(call, "load the executable")
        except BaseException:
            host.forget(made)
            raise
        if isinstance(answer, Absent):
            host.forget(made)
            return 0
        return int(answer.resource)

    if size <= MAX_INLINE_ARTIFACT:
        return load(bytes(artifact), 0, b"")
    return load(b"", 0, hashlib.sha256(artifact).digest()) or load(b"", host.next_transfer(), b"")
