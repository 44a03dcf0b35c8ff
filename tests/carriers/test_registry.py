"""H30: carriers are found by scheme, loaded when used, and strangers can add one."""

import subprocess
import sys

import pytest

from remora.base.uri import parse_uri
from remora.carriers import connect, listen, registry
from remora.errors import NotFoundError

STRANGER = """
from remora.carriers.loopback import adopt, connect, listen
"""


def test_an_unknown_scheme_lists_the_known_ones():
    with pytest.raises(NotFoundError, match="loopback, shm, tcp, unix"):
        connect("pigeon://coop")


def test_a_parsed_uri_is_taken_as_well():
    with listen(parse_uri("tcp://127.0.0.1:0")) as listener, connect(parse_uri(listener.address)) as client:
        assert client.peer == listener.address


def test_importing_the_registry_loads_no_carrier():
    code = "import sys, remora.carriers; print([name for name in ('socket', 'remora.carriers.tcp') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_a_stranger_registers_a_carrier_by_entry_point(tmp_path, monkeypatch):
    (tmp_path / "pigeon_carrier.py").write_text(STRANGER)
    info = tmp_path / "pigeon-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\npigeon = pigeon_carrier\n")
    monkeypatch.syspath_prepend(tmp_path)
    with listen("pigeon://coop") as listener:
        assert listener.address == "loopback://coop"
