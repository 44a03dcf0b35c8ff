"""The manifest of a bundle: JSON to contracts and back (requirements D11, H19).

    {"format": 1, "name": "vector",
     "kernels": [{"name": "add_i32", "export": "add_i32", "workgroup": [1, 1, 1],
                  "bindings": [{"name": "a", "access": "read", "bytes": 0, "constant": "n", "scale": 4, "alignment": 4}],
                  "constants": [{"name": "n", "type": "u32"}],
                  "grid": {"elements": [16384, 1, 1], "fixed": null}}],
     "constants": [{"name": "FACTOR", "type": "u32", "ordinal": 0, "default": null}],
     "globals": [{"name": "total", "export": "total", "size": 8}],
     "artifacts": [{"target": "cpu:x86_64-v3", "file": "artifacts/cpu/x86_64-v3/vector.so", "bytes": 1234, "sha256": "…",
                    "variants": {"add_i32": {"grid": {"elements": [256, 1, 1]}}}}],
     "sources": [{"file": "sources/vector.c", "bytes": 99, "sha256": "…"}]}

Everything is checked and nothing is guessed: an unknown key, a wrong type or an absurd size is a UsageError that names the place,
such as `kernels[0].bindings[1].access`. Keys with a default in hal.executable may be left out; writing writes them all, but
`constants` (for specialization), `globals` and `variants` only where there are some. Without an ordinal a constant follows the one
before. `variants` are what one artifact has otherwise: the export, workgroup, grid and launch attributes of some of its kernels.

Launch attributes of a kernel are written only where they are not the default: `"shared_bytes": 102400` is dynamic shared memory of
a workgroup (0 to 1 MiB), `"cluster": [2, 1, 1]` how many workgroups run together in each direction (16 in all at most).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from remora.errors import UnsupportedError, UsageError
from remora.hal.buffer import Access
from remora.hal.executable import (
    MAX_CLUSTER,
    MAX_GRID,
    MAX_SHARED_BYTES,
    NO_CLUSTER,
    BindingRule,
    ConstantRule,
    GridRule,
    KernelInfo,
)
from remora.hal.specialization import CONSTANT_CODES, ExecutableInfo, GlobalRule, SpecializationRule
from remora.hal.target import Target
from remora.hal.variant import KernelVariant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "FORMAT",
    "MAX_ARTIFACT_BYTES",
    "MAX_MANIFEST_BYTES",
    "Manifest",
    "Member",
    "encode_info",
    "encode_manifest",
    "parse_info",
    "parse_manifest",
]

FORMAT = 1
MAX_MANIFEST_BYTES = 1 << 20
MAX_ARTIFACT_BYTES = 1 << 30
MAX_SOURCE_BYTES = 16 << 20
MAX_KERNELS = 1024
MAX_FILES = 256
#: As the IREE executable-library ABI has it: 64 bindings, 64 constant words.
MAX_BINDINGS = 64
MAX_CONSTANTS = 64
MAX_ALIGNMENT = 1 << 16
#: 32-bit words of specialization constants, and named globals with their bytes.
MAX_WORDS = 1024
MAX_GLOBALS = 256
MAX_GLOBAL_BYTES = 1 << 32
_U32 = (1 << 32) - 1
_ACCESS = {"read": Access.READ, "write": Access.WRITE, "read_write": Access.READ_WRITE}
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
#: One component of a path inside the bundle: no separator, no leading dot.
_FILE = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,126}")
#: Keys of launch attributes, in a kernel and in a variant.
_LAUNCH = ("shared_bytes", "cluster")
_SHA256 = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the bundle: its path inside, its size in bytes, its SHA-256 in hex, and for an artifact its target and variants."""

    file: str
    bytes: int
    sha256: str
    target: Target | None = None
    variants: Mapping[str, KernelVariant] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checked manifest."""

    name: str
    info: ExecutableInfo
    artifacts: tuple[Member, ...]
    sources: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class _Node:
    """A JSON value and the place where it stands, for messages."""

    value: Any
    path: str

    def of(self, kernel: str) -> _Node:
        """The same, with the kernel's name in messages."""
        return replace(self, path=f"{self.path} of {kernel}")

    def refuse(self, wanted: str) -> UsageError:
        """The error that says what should stand here."""
        return UsageError(f"manifest: {self.path or 'the top'} must be {wanted}, not {_shown(self.value)}")

    def fields(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, _Node]:
        """The members of an object with exactly these keys."""
        if not isinstance(self.value, dict):
            raise self.refuse("an object")
        dot = f"{self.path}." if self.path else ""
        for key in required:
            if key not in self.value:
                raise UsageError(f"manifest: {dot}{key} is missing")
        for key in self.value:
            if key not in (*required, *optional):
                raise UsageError(f"manifest: {dot}{_shown(key)[1:-1]} is unknown; known here: {', '.join((*required, *optional))}")
        return {key: _Node(value, dot + key) for key, value in self.value.items()}

    def items(self, most: int, fewest: int = 0) -> list[_Node]:
        """The entries of a list."""
        if not isinstance(self.value, list) or not fewest <= len(self.value) <= most:
            raise self.refuse(f"a list of {fewest} to {most} entries")
        return [_Node(value, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def whole(self, low: int, high: int) -> int:
        """An integer in a range; true and false are none."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.refuse(f"a whole number from {low} to {high}")
        return self.value

    def text(self, pattern: re.Pattern[str], wanted: str) -> str:
        """A string that matches all of a pattern."""
        if not isinstance(self.value, str) or not pattern.fullmatch(self.value):
            raise self.refuse(wanted)
        return self.value

    def name(self) -> str:
        """A name of a kernel, a binding or a constant."""
        return self.text(_NAME, "a name of 1 to 256 printable characters")

    def choice(self, among: dict[str, T]) -> T:
        """What one of a few words stands for."""
        if not isinstance(self.value, str) or self.value not in among:
            raise self.refuse(f"one of {', '.join(among)}")
        return among[self.value]


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value) if not isinstance(value, int) or abs(value) <= 1 << 64 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def parse_manifest(data: bytes) -> Manifest:
    """Check a manifest's JSON. Raises UsageError that names the place, or UnsupportedError for another format number."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise UsageError(f"manifest: {len(data)} bytes, the most is {MAX_MANIFEST_BYTES}")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"manifest: no valid JSON: {error}") from None
    _check_format(value)
    top = _Node(value, "").fields(("format", "name", "kernels", "artifacts"), ("sources", "constants", "globals"))
    info = _info(top)
    kernels = {kernel.name: kernel.name for kernel in info.kernels}
    nodes = top["artifacts"].items(MAX_FILES, 1)
    artifacts = _unique(nodes, lambda node: _artifact(node, kernels), lambda member: str(member.target))
    sources = _unique(top["sources"].items(MAX_FILES), _source, lambda member: member.file) if "sources" in top else ()
    return Manifest(top["name"].text(_FILE, "a word of letters, digits and _.+-"), info, artifacts, sources)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise UsageError(f"manifest: the key {twice!r} stands twice in one object")
    return members


def _no_constant(text: str) -> Any:
    raise UsageError(f"manifest: {text} is no JSON number")


def _check_format(value: Any) -> None:
    """The format number is looked at first: another format may have other keys."""
    if not isinstance(value, dict) or "format" not in value:
        raise UsageError("manifest: format is missing; this is no remora bundle")
    number = _Node(value["format"], "format").whole(0, _U32)
    if number != FORMAT:
        raise UnsupportedError(f"manifest: format {number}, this version of remora reads format {FORMAT}; rebuild the bundle")


def _unique(nodes: list[_Node], parse: Callable[[_Node], T], key: Callable[[T], str]) -> tuple[T, ...]:
    """Parse a list whose entries must differ in `key`."""
    parsed: dict[str, T] = {}
    for node in nodes:
        entry = parse(node)
        if key(entry) in parsed:
            raise UsageError(f"manifest: {node.path}: {key(entry)} is there already")
        parsed[key(entry)] = entry
    return tuple(parsed.values())


def _info(top: dict[str, _Node]) -> ExecutableInfo:
    kernels = _unique(top["kernels"].items(MAX_KERNELS, 1), _kernel, lambda kernel: kernel.name)
    constants = _specializations(top["constants"]) if "constants" in top else ()
    owned: tuple[GlobalRule, ...] = ()
    if "globals" in top:
        owned = _unique(top["globals"].items(MAX_GLOBALS), _global, lambda rule: rule.name)
    return ExecutableInfo(kernels, constants, owned)


def _specializations(node: _Node) -> tuple[SpecializationRule, ...]:
    """Rules that cover the words from 0 on, each once."""
    following = 0

    def parse(each: _Node) -> SpecializationRule:
        nonlocal following
        rule = _specialization(each, following)
        following = rule.ordinal + rule.words
        return rule

    rules = _unique(node.items(MAX_WORDS), parse, lambda rule: rule.name)
    expected = 0
    for rule in sorted(rules, key=lambda rule: rule.ordinal):
        if rule.ordinal != expected:
            raise UsageError(f"manifest: {node.path}: {rule.name} begins at word {rule.ordinal}, it has to be {expected}")
        expected += rule.words
    return rules


def _specialization(node: _Node, following: int) -> SpecializationRule:
    fields = node.fields(("name",), ("type", "ordinal", "default"))
    rule = SpecializationRule(
        fields["name"].name(),
        fields["type"].choice({kind: kind for kind in CONSTANT_CODES}) if "type" in fields else "u32",
        fields["ordinal"].whole(0, MAX_WORDS - 1) if "ordinal" in fields else following,
    )
    if "default" not in fields or fields["default"].value is None:
        return rule
    default = fields["default"]
    if type(default.value) not in ((int, float) if rule.type[0] == "f" else (int,)):
        raise default.refuse(f"a number of type {rule.type}")
    try:
        rule.pack(default.value)
    except UsageError:
        raise default.refuse(f"a number of type {rule.type}") from None
    return replace(rule, default=default.value)


def _global(node: _Node) -> GlobalRule:
    fields = node.fields(("name", "size"), ("export",))
    export = fields["export"].name() if "export" in fields and fields["export"].value != "" else ""
    return GlobalRule(fields["name"].name(), fields["size"].whole(1, MAX_GLOBAL_BYTES), export)


def _kernel(node: _Node) -> KernelInfo:
    fields = node.fields(("name",), ("export", "bindings", "constants", "workgroup", "grid", *_LAUNCH))
    constants: tuple[ConstantRule, ...] = ()
    if "constants" in fields:
        constants = _unique(fields["constants"].items(MAX_CONSTANTS), _constant, lambda rule: rule.name)
    types = {rule.name: rule.type for rule in constants}
    bindings: tuple[BindingRule, ...] = ()
    if "bindings" in fields:
        nodes = fields["bindings"].items(MAX_BINDINGS)
        bindings = _unique(nodes, lambda each: _binding(each, types), lambda rule: rule.name)
    name = fields["name"].name()
    return KernelInfo(
        name=name,
        bindings=bindings,
        constants=constants,
        workgroup=_triple(fields["workgroup"], 1) if "workgroup" in fields else (1, 1, 1),
        grid=_grid(fields["grid"]) if "grid" in fields else GridRule(),
        export=fields["export"].name() if "export" in fields and fields["export"].value != "" else "",
        shared_bytes=_shared(fields["shared_bytes"], name) if "shared_bytes" in fields else 0,
        cluster=_cluster(fields["cluster"], name) if "cluster" in fields else NO_CLUSTER,
    )


def _binding(node: _Node, types: dict[str, str]) -> BindingRule:
    fields = node.fields(("name", "access"), ("bytes", "constant", "scale", "alignment"))
    alignment = fields["alignment"].whole(1, MAX_ALIGNMENT) if "alignment" in fields else 4
    if alignment & (alignment - 1):
        raise fields["alignment"].refuse("a power of two")
    constant = ""
    if "constant" in fields and fields["constant"].value != "":
        integers = {name: name for name, kind in types.items() if kind[0] != "f"}
        if not integers:
            raise fields["constant"].refuse("empty, since the kernel has no integer constant")
        constant = fields["constant"].choice(integers)
    return BindingRule(
        name=fields["name"].name(),
        access=fields["access"].choice(_ACCESS),
        bytes=fields["bytes"].whole(0, (1 << 63) - 1) if "bytes" in fields else 0,
        constant=constant,
        scale=fields["scale"].whole(0, _U32) if "scale" in fields else 0,
        alignment=alignment,
    )


def _constant(node: _Node) -> ConstantRule:
    fields = node.fields(("name",), ("type",))
    kinds = {kind: kind for kind in CONSTANT_CODES}
    return ConstantRule(fields["name"].name(), fields["type"].choice(kinds) if "type" in fields else "u32")


def _grid(node: _Node) -> GridRule:
    fields = node.fields((), ("elements", "fixed"))
    elements = _triple(fields["elements"], 1, (_U32, _U32, _U32)) if "elements" in fields else (1, 1, 1)
    fixed = fields.get("fixed")
    return GridRule(elements, None if fixed is None or fixed.value is None else _triple(fixed, 0))


def _triple(node: _Node, low: int, high: tuple[int, int, int] = MAX_GRID) -> tuple[int, int, int]:
    x, y, z = (each.whole(low, top) for each, top in zip(node.items(3, 3), high, strict=True))
    return x, y, z


def _shared(node: _Node, kernel: str) -> int:
    return node.of(kernel).whole(0, MAX_SHARED_BYTES)


def _cluster(node: _Node, kernel: str) -> tuple[int, int, int]:
    x, y, z = sizes = _triple(node.of(kernel), 1, (MAX_CLUSTER, MAX_CLUSTER, MAX_CLUSTER))
    if x * y * z > MAX_CLUSTER:
        raise UsageError(f"manifest: {node.of(kernel).path} has {x * y * z} workgroups, {MAX_CLUSTER} are the most: not {sizes}")
    return sizes


def _artifact(node: _Node, kernels: dict[str, str]) -> Member:
    fields = node.fields(("target", "file", "bytes", "sha256"), ("variants",))
    target = fields["target"]
    family, _, key = target.value.partition(":") if isinstance(target.value, str) else ("", "", "")
    if not _FILE.fullmatch(family) or not _FILE.fullmatch(key):
        raise target.refuse("family:key, such as cpu:x86_64-v3")
    member = _member(fields, f"artifacts/{family}/{key}/", MAX_ARTIFACT_BYTES, Target(family, key))
    if "variants" not in fields:
        return member
    there = fields["variants"].fields((), kernels)
    return replace(member, variants={name: _variant(each, name) for name, each in there.items()})


def _variant(node: _Node, kernel: str) -> KernelVariant:
    fields = node.fields((), ("export", "workgroup", "grid", *_LAUNCH))
    return KernelVariant(
        fields["export"].name() if "export" in fields else "",
        _triple(fields["workgroup"], 1) if "workgroup" in fields else None,
        _grid(fields["grid"]) if "grid" in fields else None,
        _shared(fields["shared_bytes"], kernel) if "shared_bytes" in fields else None,
        _cluster(fields["cluster"], kernel) if "cluster" in fields else None,
    )


def _source(node: _Node) -> Member:
    return _member(node.fields(("file", "bytes", "sha256")), "sources/", MAX_SOURCE_BYTES, None)


def _member(fields: dict[str, _Node], folder: str, most: int, target: Target | None) -> Member:
    file = fields["file"]
    if not isinstance(file.value, str) or not file.value.startswith(folder) or not _FILE.fullmatch(file.value.removeprefix(folder)):
        raise file.refuse(f"{folder} and a file name of letters, digits and _.+-")
    return Member(file.value, fields["bytes"].whole(0, most), fields["sha256"].text(_SHA256, "64 hex digits"), target)


def encode_manifest(manifest: Manifest) -> bytes:
    """The one JSON text of a manifest: all keys, sorted, so that equal manifests are equal bytes. It is not checked here."""
    value = {
        "format": FORMAT,
        "name": manifest.name,
        **_info_value(manifest.info),
        "artifacts": [_member_value(member) for member in manifest.artifacts],
        "sources": [_member_value(member) for member in manifest.sources],
    }
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def encode_info(info: ExecutableInfo) -> bytes:
    """What a manifest says of the code, as JSON: this travels beside an artifact that is loaded on a server."""
    return json.dumps(_info_value(info), separators=(",", ":"), ensure_ascii=False).encode()


def parse_info(data: bytes) -> ExecutableInfo:
    """Check what came from elsewhere, as strictly as a manifest. Raises UsageError that names the place."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"manifest: no valid JSON: {error}") from None
    return _info(_Node(value, "").fields(("kernels",), ("constants", "globals")))


def _info_value(info: ExecutableInfo) -> dict[str, Any]:
    value: dict[str, Any] = {"kernels": [_kernel_value(kernel) for kernel in info.kernels]}
    if info.constants:
        value["constants"] = [
            {"name": rule.name, "type": rule.type, "ordinal": rule.ordinal, "default": rule.default} for rule in info.constants
        ]
    if info.globals:
        value["globals"] = [{"name": rule.name, "export": rule.export, "size": rule.size} for rule in info.globals]
    return value


def _kernel_value(kernel: KernelInfo) -> dict[str, Any]:
    launch: dict[str, Any] = {"shared_bytes": kernel.shared_bytes} if kernel.shared_bytes else {}
    if kernel.cluster != NO_CLUSTER:
        launch["cluster"] = kernel.cluster
    return {
        **launch,
        "name": kernel.name,
        "export": kernel.export,
        "workgroup": kernel.workgroup,
        "bindings": [_binding_value(rule) for rule in kernel.bindings],
        "constants": [{"name": rule.name, "type": rule.type} for rule in kernel.constants],
        "grid": _grid_value(kernel.grid),
    }


def _grid_value(rule: GridRule) -> dict[str, Any]:
    return {"elements": rule.elements, "fixed": rule.fixed}


def _binding_value(rule: BindingRule) -> dict[str, Any]:
    words = {access: word for word, access in _ACCESS.items()}
    return {
        "name": rule.name,
        "access": words.get(rule.access, int(rule.access)),
        "bytes": rule.bytes,
        "constant": rule.constant,
        "scale": rule.scale,
        "alignment": rule.alignment,
    }


def _member_value(member: Member) -> dict[str, Any]:
    value: dict[str, Any] = {"file": member.file, "bytes": member.bytes, "sha256": member.sha256}
    if member.target is not None:
        value["target"] = str(member.target)
    if member.variants:
        value["variants"] = {name: _variant_value(variant) for name, variant in member.variants.items()}
    return value


def _variant_value(variant: KernelVariant) -> dict[str, Any]:
    value: dict[str, Any] = {"export": variant.export} if variant.export else {}
    if variant.workgroup is not None:
        value["workgroup"] = variant.workgroup
    if variant.grid is not None:
        value["grid"] = _grid_value(variant.grid)
    if variant.shared_bytes is not None:
        value["shared_bytes"] = variant.shared_bytes
    if variant.cluster is not None:
        value["cluster"] = variant.cluster
    return value
