"""Bundles: one file with a program's kernels for many targets, and their contracts (requirements D11, H19).

A bundle is a ZIP file: `manifest.json` (hal/manifest.py says what is in it), `artifacts/<family>/<key>/<file>` for each target, and
the sources they were built from. Loading reads the manifest only; one artifact is read and unpacked when a device takes it,
and is then checked against the size and SHA-256 in the manifest. Equal content gives equal bytes and an equal digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from remora.errors import NotFoundError, UsageError
from remora.hal.dlpack import host_bytes
from remora.hal.manifest import MAX_MANIFEST_BYTES, Manifest, Member, encode_manifest, parse_manifest
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target, choose_target, parse_target
from remora.hal.variant import applied

if TYPE_CHECKING:
    import os
    import zipfile
    from collections.abc import Callable, Mapping, Sequence

    from remora.hal.executable import KernelInfo
    from remora.hal.variant import KernelVariant

__all__ = ["Bundle"]

_MANIFEST = "manifest.json"
#: What ZIP and deflate decoding raise for bytes that are none, besides zipfile.BadZipFile and zlib.error.
_BROKEN = (EOFError, NotImplementedError, RuntimeError, ValueError, LookupError, OverflowError)
_EPOCH = (1980, 1, 1, 0, 0, 0)

Place: TypeAlias = "str | os.PathLike[str]"
T = TypeVar("T")


@final
class Bundle:
    """Kernels for many targets. `Bundle.load(path)` reads a file of them, `Bundle.from_parts` takes what another compiler made.

    `device.load(bundle)` takes the artifact that fits.

    Example: `kernels = device.load(Bundle.load("vector.rbundle")); add = kernels["add_i32"]`. A bundle never changes.
    """

    __slots__ = ("_artifacts", "_manifest", "_read")

    def __init__(self, manifest: Manifest, read: Callable[[Member], bytes]) -> None:
        self._manifest = manifest
        self._read = read
        self._artifacts = {member.target: member for member in manifest.artifacts if member.target is not None}

    def __repr__(self) -> str:
        return f"<Bundle {self.name}: {len(self.kernels)} kernels for {', '.join(map(str, self.targets))}>"

    @classmethod
    def load(cls, source: Place | bytes | bytearray | memoryview) -> Bundle:
        """Open a bundle from a path or from the bytes of one. A path is read again when an artifact is selected.

        Raises NotFoundError when there is no such file, and UsageError that names the place in the manifest when it is broken.
        """
        place = bytes(source) if isinstance(source, bytes | bytearray | memoryview) else source
        with _Archive(place) as archive:
            manifest = parse_manifest(archive.read(_MANIFEST, MAX_MANIFEST_BYTES))
            archive.check(manifest)

        def read(member: Member) -> bytes:
            with _Archive(place) as again:
                return again.read(member.file, member.bytes)

        return cls(manifest, read)

    @classmethod
    def from_parts(
        cls,
        name: str,
        kernels: ExecutableInfo | Sequence[KernelInfo],
        artifacts: Mapping[Target, Any] | Mapping[str, Any],
        sources: Mapping[str, bytes] | None = None,
        variants: Mapping[Target, Mapping[str, KernelVariant]] | Mapping[str, Mapping[str, KernelVariant]] | None = None,
    ) -> Bundle:
        """A bundle of contracts, artifacts by target, and source files by name. Raises UsageError as `load` does.

        `kernels` is all that the manifest says of the code, or the kernels alone. `variants` are what single artifacts have
        otherwise, by the names of kernels. A target may be written out.

        Example: `Bundle.from_parts("scale", [KernelInfo("scale", ...)], {"cuda:sm_90": cubin}).save("scale.rbundle")`.
        """
        artifacts, others = _by_target(artifacts), _by_target(variants or {})
        contents: dict[str, bytes] = {}

        def member(file: str, data: Any, target: Target | None) -> Member:
            contents[file] = content = bytes(host_bytes(data))
            other = others.get(target, {}) if target is not None else {}
            return Member(file, len(content), _sha256(content), target, other)

        made = [member(f"artifacts/{target.family}/{target.key}/{name}", artifacts[target], target) for target in sorted(artifacts)]
        told = [member(f"sources/{file}", data, None) for file, data in sorted((sources or {}).items())]
        manifest = parse_manifest(encode_manifest(Manifest(name, ExecutableInfo.of(kernels), tuple(made), tuple(told))))
        return cls(manifest, lambda each: contents[each.file])

    @property
    def name(self) -> str:
        """What the bundle is called."""
        return self._manifest.name

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        """The contracts of the kernels; every artifact has them all."""
        return self._manifest.info.kernels

    @property
    def info(self) -> ExecutableInfo:
        """Kernels, specialization constants and named globals; every artifact has them all."""
        return self._manifest.info

    def info_for(self, target: Target) -> ExecutableInfo:
        """`info` as the artifact for this target has it: its compiler may have chosen another grid. `load` takes this one.

        Raises NotFoundError when there is no artifact for it.
        """
        choose_target([target], self._artifacts)
        return applied(self.info, self._artifacts[target].variants)

    @property
    def targets(self) -> tuple[Target, ...]:
        """What there are artifacts for."""
        return tuple(self._artifacts)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the source files that the artifacts were built from."""
        return tuple(member.file.removeprefix("sources/") for member in self._manifest.sources)

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the canonical content: equal for equal contracts, artifacts and sources, however they are packed."""
        return _sha256(encode_manifest(self._manifest))

    def select(self, advertised: Sequence[Target]) -> tuple[Target, bytes]:
        """The first of a device's targets that there is an artifact for, and that artifact; no other is unpacked.

        Raises NotFoundError that lists both sides when none fits, and UsageError when the artifact is damaged.
        """
        target = choose_target(advertised, self._artifacts)
        return target, self.artifact(target)

    def artifact(self, target: Target) -> bytes:
        """The artifact for exactly this target. Raises NotFoundError when there is none."""
        choose_target([target], self._artifacts)
        return self._checked(self._artifacts[target])

    def source(self, name: str) -> bytes:
        """A source file. Raises NotFoundError when there is none of that name."""
        for member in self._manifest.sources:
            if member.file == f"sources/{name}":
                return self._checked(member)
        raise NotFoundError(f"{self.name} has no source {name!r}; it has {', '.join(self.sources) or 'none'}")

    def save(self, path: Place) -> None:
        """Write the bundle to a file."""
        from pathlib import Path

        Path(path).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The bundle as the bytes of its file: the same bytes for the same content and zlib."""
        import io
        import zipfile

        into = io.BytesIO()
        with zipfile.ZipFile(into, "w") as archive:
            _pack(archive, _MANIFEST, encode_manifest(self._manifest))
            for member in (*self._manifest.artifacts, *self._manifest.sources):
                _pack(archive, member.file, self._checked(member))
        return into.getvalue()

    def _checked(self, member: Member) -> bytes:
        content = self._read(member)
        if len(content) != member.bytes or _sha256(content) != member.sha256:
            raise UsageError(f"{self.name}: {member.file} is not what the manifest says it is; get the bundle again")
        return content


def _by_target(parts: Mapping[Target, T] | Mapping[str, T]) -> dict[Target, T]:
    return {parse_target(target) if isinstance(target, str) else Target(*target): part for target, part in parts.items()}


class _Archive:
    """A ZIP file that is being read: whatever is wrong with it becomes a UsageError that says where."""

    def __init__(self, place: Place | bytes) -> None:
        self._place = place
        self._name = "these bytes" if isinstance(place, bytes) else str(place)

    def __enter__(self) -> _Archive:
        import io
        import zipfile
        import zlib

        self._broken = (zipfile.BadZipFile, zlib.error, OSError, *_BROKEN)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(self._place) if isinstance(self._place, bytes) else self._place)
        except FileNotFoundError:
            raise NotFoundError(f"there is no bundle {self._name}; check the path") from None
        except self._broken as error:
            raise UsageError(f"{self._name}: no bundle, since it is no ZIP file ({error}); build it again") from None
        return self

    def __exit__(self, *unused: object) -> None:
        self._zip.close()

    def read(self, file: str, most: int) -> bytes:
        """Unpack one file of at most `most` bytes; a file that unpacks to more is not unpacked further."""
        try:
            info = self._zip.getinfo(file)
        except KeyError:
            raise UsageError(f"{self._name}: {file} is missing; this is no remora bundle, or a damaged one") from None
        if info.file_size > most:
            raise UsageError(f"{self._name}: {file} unpacks to {info.file_size} bytes, {most} is the most it may have")
        try:
            with self._zip.open(info) as member:
                return member.read(most + 1)
        except self._broken as error:
            raise UsageError(f"{self._name}: {file} is damaged ({error}); get the bundle again") from None

    def check(self, manifest: Manifest) -> None:
        """Raise UsageError unless the files are exactly the manifest's, each once and of the size it says."""
        infos = self._zip.infolist()
        sizes = {info.filename: info.file_size for info in infos}
        listed = {
            member.file: f"{kind}[{index}]"
            for kind, members in (("artifacts", manifest.artifacts), ("sources", manifest.sources))
            for index, member in enumerate(members)
        }
        for member in (*manifest.artifacts, *manifest.sources):
            if member.file not in sizes:
                raise UsageError(f"manifest: {listed[member.file]}.file: {member.file} is not in the bundle")
            if sizes[member.file] != member.bytes:
                raise UsageError(f"manifest: {listed[member.file]}.bytes is {member.bytes}, the file has {sizes[member.file]}")
        strange = sizes.keys() - listed.keys() - {_MANIFEST}
        if strange or len(infos) != len(sizes):
            what = f"holds {min(strange)!r}, which the manifest does not name" if strange else "holds a file twice"
            raise UsageError(f"{self._name}: {what}; build the bundle again")


def _pack(archive: zipfile.ZipFile, file: str, content: bytes) -> None:
    import zipfile

    info = zipfile.ZipInfo(file, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = 0o644 << 16
    archive.writestr(info, content, compresslevel=9)


def _sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()
