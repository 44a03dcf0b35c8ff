"""Bundles (D11, H19): round trips, target selection, and every kind of damage named by its place."""

from __future__ import annotations

import copy
import io
import json
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import Error, NotFoundError, UnsupportedError, UsageError
from remora.hal.buffer import Access
from remora.hal.bundle import Bundle
from remora.hal.executable import BindingRule, ConstantRule, GridRule, KernelInfo
from remora.hal.manifest import MAX_ARTIFACT_BYTES, MAX_MANIFEST_BYTES, encode_info, parse_info, parse_manifest
from remora.hal.specialization import CONSTANT_CODES, ExecutableInfo
from remora.hal.target import Target

V1, V3, ARM = Target("cpu", "x86_64"), Target("cpu", "x86_64-v3"), Target("cpu", "aarch64")
ADD = KernelInfo(
    "add",
    (BindingRule("a", Access.READ, constant="n", scale=4), BindingRule("out", Access.WRITE, bytes=16, alignment=64)),
    (ConstantRule("n"), ConstantRule("alpha", "f32")),
    (8, 1, 1),
    GridRule((4096, 1, 1)),
    "add_export",
)
FIXED = KernelInfo("fixed", grid=GridRule(fixed=(64, 1, 1)))


def sample():
    return Bundle.from_parts("sample", [ADD, FIXED], {V1: b"generic" * 99, V3: b"fast" * 99}, {"add.c": b"int add;"})


def value_of(bundle):
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes())) as archive:
        return json.loads(archive.read("manifest.json"))


def repacked(bundle, *, change=None, skip=(), extra=()):
    """The bundle's file with a changed manifest, without some members, with others added."""
    into = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle.to_bytes())) as old, zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "manifest.json" and change is not None:
                data = change if isinstance(change, bytes) else json.dumps(change).encode()
            if info.filename not in skip:
                new.writestr(info.filename, data)
        for name, data in extra:
            new.writestr(name, data)
    return into.getvalue()


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
files = st.from_regex(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,11}", fullmatch=True)
grids = st.tuples(st.integers(1, (1 << 32) - 1), st.integers(1, 99), st.integers(1, 99))


@st.composite
def kernels(draw):
    constants = draw(
        st.lists(
            st.builds(ConstantRule, names, st.sampled_from(list(CONSTANT_CODES))), max_size=4, unique_by=lambda rule: rule.name
        )
    )
    integers = ["", *(rule.name for rule in constants if rule.type[0] != "f")]
    bindings = st.builds(
        BindingRule,
        names,
        st.sampled_from([Access.READ, Access.WRITE, Access.READ_WRITE]),
        st.integers(0, 1 << 40),
        st.sampled_from(integers),
        st.integers(0, 1 << 20),
        st.integers(0, 16).map(lambda shift: 1 << shift),
    )
    return KernelInfo(
        draw(names),
        tuple(draw(st.lists(bindings, max_size=4, unique_by=lambda rule: rule.name))),
        tuple(constants),
        draw(st.tuples(*[st.integers(1, 64)] * 3)),
        GridRule(draw(grids), draw(st.none() | grids)),
        draw(st.just("") | names),
        draw(st.just(0) | st.integers(0, 1 << 20)),
        draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 4, 4), (16, 1, 1)])),
    )


@settings(max_examples=25)
@given(
    files,
    st.lists(kernels(), min_size=1, max_size=4, unique_by=lambda info: info.name),
    st.dictionaries(st.builds(Target, files, files), st.binary(max_size=64), min_size=1, max_size=4),
    st.dictionaries(files, st.binary(max_size=64), max_size=3),
)
def test_d11_a_bundle_comes_back_as_it_was(name, infos, artifacts, sources):
    made = Bundle.from_parts(name, infos, artifacts, sources)
    back = Bundle.load(made.to_bytes())
    assert back.name == made.name == name
    assert back.kernels == made.kernels == tuple(infos)
    assert {target: back.artifact(target) for target in back.targets} == artifacts
    assert {file: back.source(file) for file in back.sources} == sources
    assert back.digest == made.digest
    assert back.to_bytes() == made.to_bytes()


def test_d11_save_and_load_by_path(tmp_path):
    path = tmp_path / "sample.rbundle"
    sample().save(path)
    for place in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), memoryview(path.read_bytes())):
        loaded = Bundle.load(place)
        assert loaded.select([V3]) == (V3, b"fast" * 99)
    assert repr(loaded) == "<Bundle sample: 2 kernels for cpu:x86_64, cpu:x86_64-v3>"


def test_d11_the_same_content_is_the_same_bytes_whatever_order_it_came_in():
    other = Bundle.from_parts("sample", [ADD, FIXED], {V3: b"fast" * 99, V1: b"generic" * 99}, {"add.c": b"int add;"})
    assert other.to_bytes() == sample().to_bytes()
    assert other.digest == sample().digest


@pytest.mark.parametrize(
    "other",
    [
        Bundle.from_parts("sample2", [ADD, FIXED], {V1: b"generic" * 99, V3: b"fast" * 99}, {"add.c": b"int add;"}),
        Bundle.from_parts("sample", [ADD], {V1: b"generic" * 99, V3: b"fast" * 99}, {"add.c": b"int add;"}),
        Bundle.from_parts("sample", [ADD, FIXED], {V1: b"generiC" * 99, V3: b"fast" * 99}, {"add.c": b"int add;"}),
        Bundle.from_parts("sample", [ADD, FIXED], {V1: b"generic" * 99}, {"add.c": b"int add;"}),
        Bundle.from_parts("sample", [ADD, FIXED], {V1: b"generic" * 99, V3: b"fast" * 99}),
    ],
)
def test_d11_other_content_has_another_digest(other):
    assert other.digest != sample().digest


@pytest.mark.parametrize(
    ("advertised", "chosen"),
    [([V3, V1], V3), ([V1, V3], V1), ([ARM, V1], V1), ([Target("cpu", "x86_64-v4"), V3, V1], V3)],
)
def test_h19_the_device_s_first_target_wins(advertised, chosen):
    target, artifact = Bundle.load(sample().to_bytes()).select(advertised)
    assert target == chosen
    assert artifact == {V1: b"generic" * 99, V3: b"fast" * 99}[chosen]


def test_h19_no_target_in_common_lists_both_sides():
    with pytest.raises(NotFoundError, match=r"takes cpu:aarch64; the bundle has cpu:x86_64, cpu:x86_64-v3"):
        sample().select([ARM])


def test_h19_only_the_chosen_artifact_is_unpacked(tmp_path):
    """The other artifact's compressed bytes are damaged, which nobody notices until it is asked for."""
    path = tmp_path / "sample.rbundle"
    sample().save(path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("artifacts/cpu/x86_64/sample")
    start = info.header_offset + 30 + len(info.filename)
    content[start : start + info.compress_size] = b"\xff" * info.compress_size
    damaged = Bundle.load(bytes(content))
    assert damaged.select([V3, V1])[1] == b"fast" * 99
    with pytest.raises(UsageError, match="artifacts/cpu/x86_64/sample is damaged"):
        damaged.select([V1])


def test_an_artifact_that_changed_after_loading_is_refused(tmp_path):
    path = tmp_path / "sample.rbundle"
    sample().save(path)
    loaded = Bundle.load(path)
    Bundle.from_parts("sample", [ADD], {V3: b"evil" * 99}).save(path)
    with pytest.raises(UsageError, match="not what the manifest says"):
        loaded.select([V3])
    path.unlink()
    with pytest.raises(NotFoundError, match="check the path"):
        loaded.select([V3])


def test_names_that_are_not_there():
    with pytest.raises(NotFoundError, match=r"no bundle /nowhere/x\.rbundle; check the path"):
        Bundle.load("/nowhere/x.rbundle")
    with pytest.raises(NotFoundError, match=r"no source 'x\.c'; it has add\.c"):
        sample().source("x.c")
    with pytest.raises(NotFoundError, match="cpu:aarch64"):
        sample().artifact(ARM)


def put(value, path, new):
    """A copy of the manifest with `new` at a path of keys and indices; KeyError removes it."""
    value = copy.deepcopy(value)
    *way, last = path
    at = value
    for step in way:
        at = at[step]
    if new is KeyError:
        del at[last]
    else:
        at[last] = new
    return value


K0 = ("kernels", 0)
B0 = (*K0, "bindings", 0)
C0 = (*K0, "constants", 0)
A0 = ("artifacts", 0)
SHA = "0" * 64
MUTATIONS = [
    (("format",), KeyError, "format is missing"),
    (("format",), True, "format must be a whole number"),
    (("format",), "1", "format must be a whole number"),
    (("name",), KeyError, "name is missing"),
    (("name",), "", "name must be a word"),
    (("name",), "../x", "name must be a word"),
    (("name",), ".x", "name must be a word"),
    (("name",), 5, "name must be a word"),
    (("kernels",), [], r"kernels must be a list of 1 to 1024 entries, not a list of 0"),
    (("kernels",), {}, "kernels must be a list"),
    (("kernels", 1), 7, r"kernels\[1\] must be an object, not 7"),
    (("artifacts",), [], "artifacts must be a list of 1"),
    (("sources",), None, "sources must be a list"),
    (("strange",), 1, "strange is unknown; known here: format, name"),
    ((*K0, "stranger"), 1, r"kernels\[0\].stranger is unknown"),
    ((*K0, "name"), KeyError, r"kernels\[0\].name is missing"),
    ((*K0, "name"), "fixed", r"kernels\[1\]: fixed is there already"),
    ((*K0, "name"), "a\nb", r"kernels\[0\].name must be a name"),
    ((*K0, "name"), "x" * 257, r"kernels\[0\].name must be a name"),
    ((*K0, "export"), 5, r"kernels\[0\].export must be a name"),
    ((*K0, "workgroup"), [1, 1], r"kernels\[0\].workgroup must be a list of 3"),
    ((*K0, "workgroup", 2), 1 << 16, r"kernels\[0\].workgroup\[2\] must be a whole number from 1 to 65535"),
    ((*K0, "workgroup", 0), 0, r"kernels\[0\].workgroup\[0\]"),
    ((*K0, "workgroup", 0), 1.0, r"kernels\[0\].workgroup\[0\]"),
    ((*K0, "shared_bytes"), -1, r"kernels\[0\].shared_bytes of add must be a whole number from 0 to 1048576, not -1"),
    ((*K0, "shared_bytes"), (1 << 20) + 1, r"kernels\[0\].shared_bytes of add must be .* 1048576, not 1048577"),
    ((*K0, "shared_bytes"), True, r"kernels\[0\].shared_bytes of add must be a whole number"),
    ((*K0, "shared_bytes"), None, r"kernels\[0\].shared_bytes of add must be a whole number"),
    ((*K0, "cluster"), 2, r"kernels\[0\].cluster of add must be a list of 3"),
    ((*K0, "cluster"), [2, 1], r"kernels\[0\].cluster of add must be a list of 3"),
    ((*K0, "cluster"), [1, 0, 1], r"kernels\[0\].cluster of add\[1\] must be a whole number from 1 to 16, not 0"),
    ((*K0, "cluster"), [17, 1, 1], r"kernels\[0\].cluster of add\[0\] must be a whole number from 1 to 16, not 17"),
    ((*K0, "cluster"), [4, 4, 2], r"kernels\[0\].cluster of add has 32 workgroups, 16 are the most: not \(4, 4, 2\)"),
    ((*K0, "clusters"), [1, 1, 1], r"kernels\[0\].clusters is unknown; known here: .*, shared_bytes, cluster"),
    ((*K0, "grid"), [], r"kernels\[0\].grid must be an object"),
    ((*K0, "grid", "elements", 1), 0, r"kernels\[0\].grid.elements\[1\]"),
    ((*K0, "grid", "fixed"), "x", r"kernels\[0\].grid.fixed must be a list"),
    ((*K0, "grid", "size"), 1, r"kernels\[0\].grid.size is unknown"),
    ((*K0, "bindings"), [{}] * 65, r"kernels\[0\].bindings must be a list of 0 to 64"),
    ((*K0, "bindings", 1, "name"), "a", r"kernels\[0\].bindings\[1\]: a is there already"),
    ((*B0, "access"), KeyError, r"kernels\[0\].bindings\[0\].access is missing"),
    ((*B0, "access"), "execute", r"kernels\[0\].bindings\[0\].access must be one of read, write, read_write, not 'execute'"),
    ((*B0, "access"), 1, r"kernels\[0\].bindings\[0\].access must be one of"),
    ((*B0, "bytes"), -1, r"kernels\[0\].bindings\[0\].bytes must be a whole number from 0"),
    ((*B0, "bytes"), 1 << 63, r"kernels\[0\].bindings\[0\].bytes"),
    ((*B0, "bytes"), 10**400, "bytes must be a whole number .* not a huge number"),
    ((*B0, "scale"), None, r"kernels\[0\].bindings\[0\].scale"),
    ((*B0, "alignment"), 3, r"kernels\[0\].bindings\[0\].alignment must be a power of two, not 3"),
    ((*B0, "alignment"), 0, r"kernels\[0\].bindings\[0\].alignment"),
    ((*B0, "constant"), "m", r"kernels\[0\].bindings\[0\].constant must be one of n, not 'm'"),
    ((*B0, "constant"), "alpha", r"kernels\[0\].bindings\[0\].constant must be one of n"),
    ((*B0, "constant"), ["n"], r"kernels\[0\].bindings\[0\].constant"),
    ((*K0, "constants"), [], r"kernels\[0\].bindings\[0\].constant must be empty"),
    ((*C0, "type"), "u16", r"kernels\[0\].constants\[0\].type must be one of u32, i32"),
    ((*C0, "type"), {}, r"kernels\[0\].constants\[0\].type must be one of .* not an object of 0"),
    ((*K0, "constants", 1, "name"), "n", r"kernels\[0\].constants\[1\]: n is there already"),
    ((*A0, "target"), "cpu", r"artifacts\[0\].target must be family:key"),
    ((*A0, "target"), "cpu:../x", r"artifacts\[0\].target must be family:key"),
    ((*A0, "target"), None, r"artifacts\[0\].target must be family:key"),
    ((*A0, "target"), "cpu:x86_64-v3", r"artifacts\[0\].file must be artifacts/cpu/x86_64-v3/ and a file name"),
    ((*A0, "file"), "artifacts/cpu/x86_64/../../x", r"artifacts\[0\].file must be"),
    ((*A0, "file"), "/etc/passwd", r"artifacts\[0\].file must be"),
    ((*A0, "file"), "artifacts/cpu/x86_64/other", r"artifacts\[0\].file: artifacts/cpu/x86_64/other is not in the bundle"),
    ((*A0, "bytes"), 1, r"artifacts\[0\].bytes is 1, the file has 693"),
    ((*A0, "bytes"), MAX_ARTIFACT_BYTES + 1, r"artifacts\[0\].bytes must be a whole number from 0 to 1073741824"),
    ((*A0, "sha256"), "0" * 63, r"artifacts\[0\].sha256 must be 64 hex digits"),
    ((*A0, "sha256"), SHA.upper() + "A", r"artifacts\[0\].sha256"),
    (("sources", 0, "file"), "manifest.json", r"sources\[0\].file must be sources/ and a file name"),
    (("sources", 0, "target"), "cpu:x", r"sources\[0\].target is unknown"),
]


@pytest.mark.parametrize(("path", "new", "message"), MUTATIONS)
def test_d11_a_wrong_manifest_is_refused_with_the_place(path, new, message):
    bundle = sample()
    with pytest.raises(UsageError, match=message):
        Bundle.load(repacked(bundle, change=put(value_of(bundle), path, new)))


def test_d11_another_format_number_is_refused_before_its_keys_are_looked_at():
    bundle = sample()
    with pytest.raises(UnsupportedError, match="format 2, this version of remora reads format 1"):
        Bundle.load(repacked(bundle, change={"format": 2, "modules": []}))


def test_d11_a_wrong_digest_is_refused_when_the_artifact_is_taken():
    bundle = sample()
    loaded = Bundle.load(repacked(bundle, change=put(value_of(bundle), (*A0, "sha256"), SHA)))
    with pytest.raises(UsageError, match="artifacts/cpu/x86_64/sample is not what the manifest says"):
        loaded.select([V1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no valid JSON"),
        (b"[]", "format is missing"),
        (b"\xff\xfe", "no valid JSON"),
        (b'{"format": 1, "format": 1}', "'format' stands twice"),
        (b'{"format": NaN}', "NaN is no JSON number"),
        (b"[" * 100_000, "no valid JSON"),
        (b'{"format": ' + b"1" * 5000 + b"}", "no valid JSON"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "the most"),
    ],
)
def test_d11_text_that_is_no_manifest_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_manifest(text)
    with pytest.raises(UsageError):
        Bundle.load(repacked(sample(), change=text))


@settings(max_examples=25)
@given(st.lists(kernels(), min_size=1, max_size=4, unique_by=lambda info: info.name))
def test_h19_contracts_travel_alone(infos):
    assert parse_info(encode_info(ExecutableInfo(tuple(infos)))) == ExecutableInfo(tuple(infos))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no valid JSON"),
        (b"[]", "the top must be an object"),
        (b"{}", "kernels is missing"),
        (b'{"kernels": {}}', "kernels must be a list of 1 to 1024"),
        (b'{"kernels": [{}]}', r"kernels\[0\].name is missing"),
        (b'{"kernels": [{"name": "k", "name": "k"}]}', "'name' stands twice"),
        (b'{"kernels": [{"name": "k"}, {"name": "k"}]}', r"kernels\[1\]: k is there already"),
        (b'{"kernels": [{"name": "k", "bindings": [{"name": "x", "access": "all"}]}]}', r"kernels\[0\].bindings\[0\].access"),
        (b'{"kernels": [{"name": "k"}], "sources": []}', "sources is unknown"),
    ],
)
def test_h19_wrong_contracts_are_refused_with_the_place(text, message):
    with pytest.raises(UsageError, match=message):
        parse_info(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value, path=()):
    """Every path in a JSON value."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*path, key))


@given(st.data())
def test_d11_any_change_of_the_manifest_is_refused_or_read_as_what_it_says(data):
    value = value_of(sample())
    path = data.draw(st.sampled_from(list(places(value))))
    changed = put(value, path, data.draw(json_values))
    try:
        parsed = parse_manifest(json.dumps(changed).encode())
    except (UsageError, UnsupportedError) as error:
        assert "manifest" in str(error)
    else:
        assert [kernel["name"] for kernel in changed["kernels"]] == [kernel.name for kernel in parsed.info.kernels]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no ZIP file"),
        (b"garbage" * 99, "no ZIP file"),
        (sample().to_bytes()[:-30], "no ZIP file"),
        (repacked(sample(), skip=["manifest.json"]), "manifest.json is missing"),
        (repacked(sample(), skip=["artifacts/cpu/x86_64/sample"]), r"artifacts\[0\].file: .* is not in the bundle"),
        (repacked(sample(), extra=[("evil.sh", b"x")]), "holds 'evil.sh', which the manifest does not name"),
    ],
)
def test_d11_a_bad_archive_is_refused(data, message):
    with pytest.raises(UsageError, match=message):
        Bundle.load(data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_d11_a_member_twice_is_refused():
    twice = repacked(sample(), extra=[("sources/add.c", b"int add;")])
    with pytest.raises(UsageError, match="holds a file twice"):
        Bundle.load(twice)


def test_d11_a_manifest_that_unpacks_to_too_much_is_not_unpacked():
    bomb = repacked(sample(), change=b" " * (64 << 20))
    assert len(bomb) < 1 << 17
    with pytest.raises(UsageError, match=r"manifest\.json unpacks to 67108864 bytes"):
        Bundle.load(bomb)


def test_d11_an_artifact_that_unpacks_to_more_than_it_says_is_refused():
    """The sizes in the archive's directory lie; the data is longer."""
    big = Bundle.from_parts("sample", [FIXED], {V1: b"\0" * (1 << 20)})
    with zipfile.ZipFile(io.BytesIO(big.to_bytes())) as archive:
        info = archive.getinfo("artifacts/cpu/x86_64/sample")
    honest = info.file_size.to_bytes(4, "little")
    lie = (16).to_bytes(4, "little")
    packed = repacked(big, change=put(value_of(big), (*A0, "bytes"), 16)).replace(honest, lie)
    loaded = Bundle.load(packed)
    with pytest.raises(UsageError, match=r"damaged|not what the manifest says"):
        loaded.select([V1])


@given(st.data())
def test_d11_flipped_bytes_never_give_another_artifact(data):
    content = bytearray(sample().to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        loaded = Bundle.load(bytes(content))
        target, artifact = loaded.select([V3, V1])
    except Error:
        return
    assert artifact == {V1: b"generic" * 99, V3: b"fast" * 99}[target]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("b", [], {V1: b"x"}), "kernels must be a list of 1"),
        (("b", [FIXED], {}), "artifacts must be a list of 1"),
        (("b", [FIXED, FIXED], {V1: b"x"}), r"kernels\[1\]: fixed is there already"),
        (("b", [KernelInfo("k", (BindingRule("x", Access.DISCARD),))], {V1: b"x"}), r"kernels\[0\].bindings\[0\].access"),
        (("b", [KernelInfo("k", constants=(ConstantRule("x", "f16"),))], {V1: b"x"}), r"kernels\[0\].constants\[0\].type"),
        (("b", [FIXED], {Target("a/b", "c"): b"x"}), r"artifacts\[0\].target"),
        (("b", [FIXED], {V1: b"x"}, {"../up": b""}), r"sources\[0\].file"),
        (("b", [FIXED], {V1: 5}), "neither the buffer protocol"),
    ],
)
def test_d11_wrong_parts_are_refused_with_the_place(arguments, message):
    with pytest.raises(UsageError, match=message):
        Bundle.from_parts(*arguments)
