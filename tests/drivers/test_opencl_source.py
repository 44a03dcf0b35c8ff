"""D02, H25: what an OpenCL C artifact declares is read from its text, and anything else is refused. Needs no OpenCL."""

import pytest

from remora.drivers.opencl.source import defines, read_source
from remora.errors import UsageError

KERNEL = "__kernel void empty(void) {}\n"


def read(text):
    return read_source(memoryview(text.encode()))


def test_d02_a_text_without_declarations():
    declared = read(KERNEL)
    assert (declared.text, declared.words, declared.globals) == (KERNEL, 0, {})


def test_h19_globals_are_pragmas_and_words_are_macros():
    declared = read(f"#pragma remora global total 4\r\n # pragma\tremora  global table 64  \n{KERNEL}uint x = REMORA_WORD_4;")
    assert declared.globals == {"total": 4, "table": 64}
    assert declared.words == 5


def test_h19_other_pragmas_and_longer_names_mean_nothing_here():
    declared = read(
        "#pragma OPENCL FP_CONTRACT OFF\n#pragma remorae global x 4\n#define REMORA_HAS_WORD_0 1\nint MY_REMORA_WORD_3;\n"
    )
    assert (declared.words, declared.globals) == (0, {})


@pytest.mark.parametrize("data", [b"", b" \n", b"\x7fELF\x02\0\0", b"\xff\xfe", b"kernel\0"])
def test_h25_what_is_no_text_is_refused(data):
    with pytest.raises(UsageError, match="the artifact is no OpenCL C source"):
        read_source(memoryview(data))


def test_h25_a_huge_text_is_refused():
    with pytest.raises(UsageError, match="the artifact has 16,777,217 bytes"):
        read_source(memoryview(bytes((16 << 20) + 1)))


@pytest.mark.parametrize(
    "pragma", ["global", "global x", "global x 0", "global 4 x", "global x -1", "global x 4294967297", "local x 4"]
)
def test_h25_a_declaration_that_is_none_is_refused(pragma):
    with pytest.raises(UsageError, match=f"'#pragma remora {pragma}'; it would be 'global NAME BYTES'"):
        read(f"#pragma remora {pragma}\n{KERNEL}")


def test_h25_more_globals_and_words_than_a_manifest_can_have_are_refused():
    with pytest.raises(UsageError, match="declares 257 globals"):
        read("".join(f"#pragma remora global x{index} 4\n" for index in range(257)))
    with pytest.raises(UsageError, match="uses REMORA_WORD_1024; there are 1024"):
        read("uint x = REMORA_WORD_1024;")


def test_h19_the_words_stand_before_the_text_and_move_no_line():
    assert defines((7, 0xFFFFFFFF)) == "#define REMORA_WORD_0 7u\n#define REMORA_WORD_1 4294967295u\n#line 1\n"
    assert defines(()) == "#line 1\n"
