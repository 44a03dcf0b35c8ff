"""What the suites say where bytes differ."""

import pytest

from remora.testing.cts.compare import same


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
def test_equal_bytes_of_any_kind(kind):
    assert same(kind(b"abc"), b"abc")
    assert same(kind(b""), b"")


@pytest.mark.parametrize(
    ("got", "expected", "shown"),
    [
        (b"abc", b"axc", "<byte 1 of 3 is 0x62, not 0x78>"),
        (b"abc", b"ab", "<3 bytes, not 2; equal as far as both go>"),
        (b"", b"ab", "<0 bytes, not 2; equal as far as both go>"),
        (b"xbc", b"ab", "<byte 0 of 3 is 0x78, not 0x61>"),
    ],
)
def test_the_first_difference_is_named(got, expected, shown):
    assert not same(got, expected)
    assert repr(same(got, expected)) == shown
