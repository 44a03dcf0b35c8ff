"""Kernel sources: what the declarations say is what the manifest says, and what is wrong is told with file and line (D11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.builder.extent import Extent, parse_extent
from remora.builder.source import read_source
from remora.errors import NotFoundError, UsageError
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, ConstantRule, GridRule
from remora.hal.specialization import GlobalRule, SpecializationRule

WHOLE = """// a comment with kernel hidden(in u32 x[n]) { in it
#include <remora.h>
#define SIDE 512
#define TILE 0x40u
/*
kernel commented(u32 n) {
*/
specialization u32 FACTOR;
specialization f64 RATE = 2.5;
specialization i32 OFFSET = -1;
global u16 table[SIDE * 2] = {1, 2, 3};
global i64 sums[4];
FUNCTION u32 twice(u32 x) { return 2 * x; }
kernel all(in u8 bytes[n + 16], out f32 square[SIDE * SIDE] aligned(TILE), inout u64 pairs[2 * n], u32 n, f32 alpha, i64 far)
    elements(SIDE, 2) workgroup(16, 16) {
  const char *text = "kernel fake(u32 n) {"; // not one
}
kernel nothing(void) {}
kernel tiles() grid(8, TILE, 2) { }
"""


@pytest.fixture
def source(tmp_path):
    """`source(text, **others)` reads a source, beside other files."""

    def read(text, **others):
        for name, content in others.items():
            (tmp_path / f"{name}.h").write_text(content)
        path = tmp_path / "made.c"
        path.write_text(text)
        return read_source(path)

    return read


def test_d11_the_declarations_are_the_contract(source):
    read = source(WHOLE)
    assert [kernel.info.name for kernel in read.kernels] == ["all", "nothing", "tiles"]
    everything, nothing, tiles = (kernel.info for kernel in read.kernels)
    assert everything.bindings == (
        BindingRule("bytes", Access.READ, 16, "n", 1, 1),
        BindingRule("square", Access.WRITE, 512 * 512 * 4, "", 0, 64),
        BindingRule("pairs", Access.READ_WRITE, 0, "n", 16, 8),
    )
    assert everything.constants == (ConstantRule("n"), ConstantRule("alpha", "f32"), ConstantRule("far", "i64"))
    assert (everything.workgroup, everything.grid) == ((16, 16, 1), GridRule((512, 2, 1)))
    assert (nothing.bindings, nothing.constants, nothing.grid) == ((), (), GridRule())
    assert tiles.grid == GridRule(fixed=(8, 64, 2))
    assert read.info.constants == (
        SpecializationRule("FACTOR", "u32", 0),
        SpecializationRule("RATE", "f64", 1, 2.5),
        SpecializationRule("OFFSET", "i32", 3, -1),
    )
    assert read.info.globals == (GlobalRule("table", 2048, "table"), GlobalRule("sums", 32, "sums"))
    assert read.words == 4


def test_d11_included_files_are_part_of_the_source_once(source):
    read = source(
        '#include <remora.h>\n#include "one.h"\n#include "two.h"\nkernel last(u32 n) {}\n',
        one='#include "two.h"\nkernel first(in u32 x[SIZE]) {}\n',
        two="#define SIZE 7\n",
    )
    assert [kernel.info.name for kernel in read.kernels] == ["first", "last"]
    assert read.kernels[0].info.bindings[0].bytes == 28
    assert list(read.files) == ["made.c", "one.h", "two.h"]
    assert [(kernel.place.file, kernel.place.line) for kernel in read.kernels] == [("one.h", 2), ("made.c", 4)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kernel k(in u32 x[m], u32 n) {}", r"made.c:2: 'm' in 'm' is neither a number, nor a constant of the kernel"),
        ("kernel k(in u32 x[n * n], u32 n) {}", "n must be an integer constant, once in a product"),
        ("kernel k(in u32 x[n], f32 n) {}", "n must be an integer constant"),
        ("kernel k(in u32 x[n + m], u32 n, u32 m) {}", "names n and m; a binding grows with one constant"),
        ("kernel k(in u32 x[0 + -4]) {}", "is negative"),
        ("kernel k(in u32 x[]) {}", "neither a number"),
        ("kernel k(in u33 x[4]) {}", "'u33' is no element type; known: i8, u8"),
        ("kernel k(in u32 x[4] aligned(24)) {}", "an alignment is a power of two, not 24"),
        ("kernel k(u8 n) {}", "'u8 n' is no parameter; a constant is one of u32"),
        ("kernel k(u32 *x) {}", "is no parameter"),
        ("kernel k(u32 n, in u32 n[4]) {}", "two parameters have one name"),
        ("kernel k(u32 n, u32 n) {}", "two parameters have one name"),
        ("kernel k(u32 n {}", "the parameter list is not closed"),
        ("kernel k {}", "a kernel is declared as"),
        ("kernel k() tiles(4) {}", r"'tiles\(4\)' is unknown here"),
        ("kernel k() elements(0) {}", "takes one to three numbers from 1 on"),
        ("kernel k() elements(1, 2, 3, 4) {}", "takes one to three numbers"),
        ("kernel k();", "is unknown here"),
        ("specialization u8 X;\nkernel k() {}", "declare it as: specialization TYPE NAME"),
        ("specialization u32 X = 1.5;\nkernel k() {}", "the default 1.5 is no u32"),
        ("specialization u32 X = -1;\nkernel k() {}", "the default -1 is no u32"),
        ("global u32 x;\nkernel k() {}", "declare it as: global TYPE NAME"),
        ("kernel k() {}\nkernel k() {}", "k is declared twice"),
        ("specialization u32 k;\nkernel k() {}", "k is declared twice"),
        ("int x;", "there is no kernel"),
    ],
)
def test_d11_what_is_wrong_is_told_with_its_place(source, line, message):
    with pytest.raises(UsageError, match=message) as caught:
        source(f"#include <remora.h>\n{line}\n")
    assert str(caught.value).startswith("made")


def test_d11_a_source_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(NotFoundError, match="there is no source"):
        read_source(tmp_path / "gone.c")
    (tmp_path / "binary.c").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no UTF-8 text"):
        read_source(tmp_path / "binary.c")


def test_d11_an_include_stays_in_the_folder(source):
    with pytest.raises(UsageError, match="includes lie in the folder of the source"):
        source('#include <remora.h>\n#include "../made.h"\nkernel k() {}\n')


terms = st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=3), st.booleans())


@given(st.lists(terms, min_size=1, max_size=4))
def test_d11_an_extent_is_the_sum_that_it_says(sums):
    text = " + ".join(" * ".join([*map(str, factors), *(["n"] if named else [])]) for factors, named in sums)
    fixed = sum(product(factors) for factors, named in sums if not named)
    scale = sum(product(factors) for factors, named in sums if named)
    named = any(named for _, named in sums)
    assert parse_extent(text, {}, {"n": "u32"}) == Extent(fixed, scale, "n" if named else "")


def product(factors):
    total = 1
    for factor in factors:
        total *= factor
    return total


@given(st.text(max_size=30))
def test_d11_any_extent_is_parsed_or_refused(text):
    try:
        extent = parse_extent(text, {"SIZE": 4}, {"n": "u32"})
    except UsageError:
        return
    assert extent.fixed >= 0
    assert extent.scale >= 0


@given(st.text(alphabet="kernel specialization global(in out u32 x[n],)={};\n\"'/*#0123", max_size=80))
def test_d11_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "any.c"
    path.write_text("#include <remora.h>\n" + text, encoding="utf-8")
    try:
        assert read_source(path).kernels
    except UsageError:
        return
