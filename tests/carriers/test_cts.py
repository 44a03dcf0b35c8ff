"""H30: every carrier passes the one conformance suite."""

import itertools
import socket
from dataclasses import replace
from functools import partial

import pytest

from remora.carriers import Capability, adopt, connect, listen
from remora.testing.cts.carrier import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.carrier import CarrierFactory

STREAM = Capability.RELIABLE | Capability.ORDERED | Capability.HANDOVER
DIRECT = Capability.REGISTERED_REGIONS | Capability.DIRECT_READ | Capability.DIRECT_WRITE
numbers = itertools.count()


def closed_port(host):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def tcp(host):
    place = f"[{host}]" if ":" in host else host
    return CarrierFactory(
        listen=partial(listen, f"tcp://{place}:0"),
        listen_at=listen,
        connect=partial(connect, timeout=10),
        unreachable=partial(closed_port, host),
        capabilities=STREAM,
        adopt=lambda fd: adopt("tcp", fd, "tcp://heir"),
    )


@pytest.fixture(params=["loopback", "tcp", "tcp6", "unix", "tcp-spin", "shm", "shm-settled", "shm-spin"])
def factory(request, tmp_path):
    if request.param == "loopback":
        return CarrierFactory(
            listen=partial(listen, "loopback://"), listen_at=listen, connect=connect, unreachable=lambda: "loopback://nobody"
        )
    if request.param == "unix":
        return CarrierFactory(
            listen=lambda: listen(f"unix://{tmp_path}/{next(numbers)}"),
            listen_at=listen,
            connect=connect,
            unreachable=lambda: f"unix://{tmp_path}/nobody",
            capabilities=STREAM | Capability.POSIX_FD,
            adopt=lambda fd: adopt("unix", fd, "unix:///heir"),
        )
    if request.param.startswith("shm"):
        settled = request.param != "shm"
        query = "?spin_us=20" if request.param == "shm-spin" else ""
        return CarrierFactory(
            listen=lambda: listen(f"shm://{tmp_path}/{next(numbers)}{query}"),
            listen_at=listen,
            connect=lambda address: connect(address + query),
            unreachable=lambda: f"shm://{tmp_path}/nobody",
            capabilities=(STREAM & ~Capability.HANDOVER if settled else STREAM) | Capability.POSIX_FD | DIRECT,
            adopt=lambda fd: adopt("shm", fd, "shm:///heir"),
            settled=settled,
        )
    if request.param == "tcp-spin":
        return replace(
            tcp("127.0.0.1"),
            listen=partial(listen, "tcp://127.0.0.1:0?spin_us=20"),
            connect=lambda address: connect(f"{address}?spin_us=20", timeout=10),
        )
    return tcp("::1" if request.param == "tcp6" else "127.0.0.1")
