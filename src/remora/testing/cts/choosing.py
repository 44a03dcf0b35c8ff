"""What the suites need to know, found out from a device's URI or a carrier's address.

factory = hal_factory("remote-tcp://127.0.0.1:5000")
factory = carrier_factory("tcp://127.0.0.1:0")
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import remora
from remora import samples
from remora.base.uri import parse_uri
from remora.carriers.registry import adopt, connect, listen
from remora.hal.bundle import Bundle
from remora.hal.target import Target
from remora.testing.cts.carrier_factory import LONG, CarrierFactory
from remora.testing.cts.hal_factory import HalFactory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.hal.device import DeviceInfo

__all__ = ["carrier_factory", "describe", "hal_factory"]

#: Takes any artifact and computes nothing: the target of the null driver.
NULL = Target("null", "any")


def hal_factory(
    info: DeviceInfo, uri: str, *, vector: str | None = None, faults: str | None = None, special: str | None = None
) -> HalFactory:
    """A factory for the device at `uri`, whose facts are `info`. `vector`, `faults` and `special` are paths of bundles made for it.

    Without paths the samples that travel with remora are used, if the device takes them; if not, tests that load code are skipped.
    Raises NotFoundError and UsageError for paths that are no bundles.
    """
    given = _chosen(vector, "vector", info.targets)
    if given is None and NULL in info.targets:
        given = Bundle.from_parts("vector", samples.load("vector").kernels, {NULL: b"nothing"})
        return HalFactory(open=partial(remora.open, uri), vector=given, executes=False, checks_artifacts=False)
    return HalFactory(
        open=partial(remora.open, uri),
        vector=given,
        faults=_chosen(faults, "faults", info.targets),
        special=_chosen(special, "special", info.targets),
        executes=given is not None,
        checks_artifacts=given is not None,
    )


def _chosen(path: str | None, sample: str, targets: Sequence[Target]) -> Bundle | None:
    bundle = samples.load(sample) if path is None else Bundle.load(path)
    return bundle if path is not None or set(bundle.targets) & set(targets) else None


def describe(info: DeviceInfo) -> str:
    """The facts of a device in one line."""
    memory = ", ".join(f"{heap.name} {heap.size / (1 << 30):.1f} GiB" for heap in info.heaps) or "none"
    targets = ", ".join(map(str, info.targets)) or "none"
    return f"{info.name} (driver {info.driver}); targets: {targets}; memory: {memory}; queues: {info.queue_count}"


def carrier_factory(address: str) -> CarrierFactory:
    """A factory for the carrier of an address. A listener is made at it once and again: a port of 0 or a `{n}` keeps them apart.

    What the carrier can do is asked of a first connection. Raises what listening and connecting raise.
    """
    scheme, numbers = parse_uri(address).scheme, count(1)

    def fresh() -> str:
        return address.replace("{n}", str(next(numbers)))

    def unreachable() -> str:
        with listen(fresh()) as listener:
            return listener.address

    with listen(fresh()) as listener, connect(listener.address, timeout=LONG) as probe:
        capabilities = probe.capabilities
    return CarrierFactory(
        listen=lambda: listen(fresh()),
        listen_at=listen,
        connect=partial(connect, timeout=LONG),
        unreachable=unreachable,
        capabilities=capabilities,
        adopt=lambda fd: adopt(scheme, fd, f"{scheme}://heir"),
    )
