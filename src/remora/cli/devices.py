"""`remora devices`: what is behind a URI."""

from __future__ import annotations

import argparse

import remora
from remora.cli.show import amount, table, waiting
from remora.hal.device import DeviceInfo

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora devices`."""
    parser.add_argument(
        "uri", nargs="?", default="cpu", metavar="URI", help="cpu (default), remote-tcp://host:5000, remote-unix:///path"
    )


def run(args: argparse.Namespace) -> int:
    """Print one row for each device."""
    with waiting(f"connecting to {args.uri}"), remora.connect(args.uri) as host:
        infos = [device.info for device in host.devices]
    rows = [
        (str(number), info.name, info.driver, _targets(info), _memory(info), str(info.queue_count))
        for number, info in enumerate(infos)
    ]
    table(("#", "device", "driver", "targets", "memory", "queues"), rows, right=("#", "memory", "queues"))
    return 0


def _targets(info: DeviceInfo) -> str:
    return " ".join(map(str, info.targets))


def _memory(info: DeviceInfo) -> str:
    return amount(sum(heap.size for heap in info.heaps), "B")
