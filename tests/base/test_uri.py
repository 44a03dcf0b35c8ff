"""Addresses: what is understood, what is refused, and that printing and parsing are inverse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.base.uri import DEFAULT_PORT, Uri, parse_uri, split_host_port
from remora.errors import UsageError


@pytest.mark.parametrize(
    ("text", "scheme", "place", "query"),
    [
        ("cpu", "cpu", "", {}),
        ("cpu://", "cpu", "", {}),
        ("  CPU  ", "cpu", "", {}),
        ("cpu?threads=2", "cpu", "", {"threads": "2"}),
        ("tcp://127.0.0.1:5000", "tcp", "127.0.0.1:5000", {}),
        ("tcp://[::1]:5000", "tcp", "[::1]:5000", {}),
        ("unix:///run/remora.sock", "unix", "/run/remora.sock", {}),
        ("unix:///run/a%20b%3F.sock", "unix", "/run/a b?.sock", {}),
        ("remote-tcp://host:5000?device=1&name=", "remote-tcp", "host:5000", {"device": "1", "name": ""}),
        ("loopback://name", "loopback", "name", {}),
        ("x+y.z://", "x+y.z", "", {}),
        ("vulkan:0", "vulkan", "0", {}),
        ("Vulkan:12?memory=staged", "vulkan", "12", {"memory": "staged"}),
    ],
)
def test_valid_addresses(text, scheme, place, query):
    parsed = parse_uri(text)
    assert (parsed.scheme, parsed.place, dict(parsed.query)) == (scheme, place, query)


@pytest.mark.parametrize(
    "text", ["", "   ", "://host", "a b://host", "tcp:/host", "host:5000", "vulkan:123", "vulkan:", ":1", "?device=1", "a/b"]
)
def test_invalid_addresses_show_examples(text):
    with pytest.raises(UsageError, match="remote-tcp://host:5000"):
        parse_uri(text)


def test_a_key_given_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        parse_uri("cpu?threads=1&threads=2")


@given(
    st.from_regex(r"[a-z][a-z0-9+.-]{0,8}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), st.text(max_size=5), max_size=3),
)
def test_printing_and_parsing_are_inverse(scheme, place, query):
    uri = Uri(scheme, place, query)
    assert parse_uri(str(uri)) == uri


@pytest.mark.parametrize("text", ["remote-tcp://host:5000", "tcp://[::1]:5000", "unix:///run/remora.sock", "cpu://"])
def test_plain_addresses_print_as_they_were(text):
    assert str(parse_uri(text)) == text


def test_the_carrier_inside_a_remote_address():
    assert parse_uri("remote-tcp://host:1?device=2").carrier == Uri("tcp", "host:1")
    with pytest.raises(UsageError, match="not a remote URI"):
        _ = parse_uri("cpu").carrier


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("host", ("host", DEFAULT_PORT)),
        ("host:0", ("host", 0)),
        ("host:65535", ("host", 65535)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]", ("::1", DEFAULT_PORT)),
        ("[::1]:9", ("::1", 9)),
        ("", ("", DEFAULT_PORT)),
    ],
)
def test_host_and_port(place, expected):
    assert split_host_port(place) == expected


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("host:65536", "no port"),
        ("host:-1", "no port"),
        ("host:x", "no port"),
        ("host:٣", "no port"),
        ("host:" + "9" * 5000, "no port"),
        ("::1", "brackets"),
        ("fe80::1:5000", "brackets"),
        ("[::1", "IPv6"),
        ("[::1]5000", "IPv6"),
    ],
)
def test_bad_host_and_port(place, message):
    with pytest.raises(UsageError, match=message):
        split_host_port(place)
