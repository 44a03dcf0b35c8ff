"""Who is compared: floors, remora on each carrier, peers that install from package registries, and two that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remora.bench.peers.metrics import Figures
from remora.errors import NotFoundError

__all__ = ["ELSEWHERE", "FLOORS", "OURS", "PEERS", "Contestant", "find_peers"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody to measure. `program` is a file of `programs/`, `words` are its arguments."""

    name: str
    title: str
    program: str
    words: tuple[str, ...] = ()
    kind: str = "peer"
    requirements: tuple[str, ...] = ()
    """What pip installs into the venv of its own. Without any, the program runs under this Python."""
    launcher: tuple[str, ...] = ()
    """Words before the Python, the first a program of its venv: both ends start together then."""
    alone: bool = False
    """Whether it needs a network namespace with nothing but `lo`, because it cannot be told where to listen."""
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Metric -> why it is not measured."""


_NO_OTHER = "both ends are one process"
_NO_LIBRARY = {"import": "nothing is imported"}
_NUMPY = "numpy==2.4.6"

FLOORS: tuple[Contestant, ...] = (
    Contestant("sockets-tcp", "plain sockets, tcp", "sockets_peer", ("tcp",), "floor", left_out=_NO_LIBRARY),
    Contestant("sockets-unix", "plain sockets, unix", "sockets_peer", ("unix",), "floor", left_out=_NO_LIBRARY),
)

OURS: tuple[Contestant, ...] = (
    Contestant("loopback", "remora, loopback", "remora_peer", ("loopback",), "remora", left_out={"noticed": _NO_OTHER}),
    Contestant("tcp", "remora, tcp", "remora_peer", ("tcp",), "remora"),
    Contestant("unix", "remora, unix", "remora_peer", ("unix",), "remora"),
    Contestant("shm", "remora, shm", "remora_peer", ("shm",), "remora"),
)

#: In the order in which they are installed and measured.
PEERS: tuple[Contestant, ...] = (
    Contestant("rpyc", "RPyC", "rpyc_peer", requirements=("rpyc==6.0.2", _NUMPY)),
    Contestant("pyzmq", "pyzmq", "pyzmq_peer", requirements=("pyzmq==27.3.0", _NUMPY)),
    Contestant("grpc", "gRPC", "grpc_peer", requirements=("grpcio==1.85.1", _NUMPY)),
    Contestant(
        "mpi",
        "MPI (MPICH)",
        "mpi_peer",
        requirements=("mpi4py==4.1.2", "mpich==5.0.2", _NUMPY),
        launcher=("mpiexec", "-n", "2"),
    ),
    Contestant("dask", "Dask", "dask_peer", requirements=("distributed==2026.8.0", _NUMPY)),
    Contestant(
        "tvm",
        "TVM RPC",
        "tvm_peer",
        requirements=("apache-tvm==0.27.0.post1", "psutil==7.2.2", "cloudpickle==3.1.2", "tornado==6.6.1", _NUMPY),
        left_out=dict.fromkeys(("upload_512_mib", "download_512_mib"), "takes more than 15 s a copy"),
    ),
    Contestant("ray", "Ray", "ray_peer", requirements=("ray==2.60.0", _NUMPY), alone=True),
    Contestant(
        "tinygrad",
        "tinygrad REMOTE",
        "tinygrad_peer",
        requirements=("tinygrad==0.11.0", "ziglang==0.17.1", _NUMPY),
    ),
)

_WHERE = "measured elsewhere: 2-core EPYC Milan VM, 29 November 2026; no package registry has it"

#: Figures of peers that no registry offers, in the units of METRICS.
ELSEWHERE: tuple[Figures, ...] = (
    Figures(
        "pocl-remote",
        "PoCL-Remote 7.2",
        "elsewhere",
        {
            "rtt_p50": 137,
            "rtt_p99": 244,
            "pipelined": 9.788,
            "upload_1_mib": 1.81,
            "upload_64_mib": 0.671,
            "upload_512_mib": 0.557,
            "download_1_mib": 1.8,
            "download_64_mib": 0.609,
            "download_512_mib": 0.667,
            "end_to_end": 307,
            "ready": 0.057,
            "import": 195,
            "memory": 43.3,
        },
        {"noticed": "the wait ends after 35 ms and reports success"},
        _WHERE,
    ),
    Figures(
        "ggml-rpc",
        "ggml-rpc",
        "elsewhere",
        {
            "rtt_p50": 103,
            "rtt_p99": 158,
            "pipelined": 53.71,
            "upload_1_mib": 2.28,
            "upload_64_mib": 0.238,
            "upload_512_mib": 0.231,
            "download_1_mib": 1.19,
            "download_64_mib": 0.664,
            "download_512_mib": 0.629,
            "end_to_end": 707,
            "ready": 0.0072,
            "memory": 3.82,
        },
        {"import": "a C library", "noticed": "aborts the client's process after 718 ms"},
        _WHERE,
    ),
)


def find_peers(names: Sequence[str]) -> tuple[Contestant, ...]:
    """The peers of these names, in the table's order; all of them for ("all",). Raises NotFoundError that lists the names."""
    known = {peer.name: peer for peer in PEERS}
    if tuple(names) == ("all",):
        return PEERS
    for name in names:
        if name not in known:
            raise NotFoundError(f"there is no peer {name!r}; there are {', '.join(known)}, or all")
    return tuple(peer for peer in PEERS if peer.name in names)
