"""HAL conformance: operations of the vendor's own (H17). What they do is the driver's to test; here is how they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remora.errors import UnsupportedError
from remora.testing.cts.hal_factory import LONG

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestExtensions"]


class TestExtensions:
    """H17: an unknown namespace or operation is refused at once, and the queue goes on."""

    def test_h17_an_unknown_namespace_is_refused_by_name(self, device: Device) -> None:
        known = ", ".join(extension.namespace for extension in device.info.extensions) or "none"
        with pytest.raises(UnsupportedError, match=f"has no extension 'nobody.knows'; it has: {known}"):
            device.queue.extension("nobody.knows", 0)
        device.queue.wait_idle(LONG)

    def test_h17_an_unknown_operation_is_refused_by_number(self, device: Device) -> None:
        for extension in device.info.extensions:
            for number in (-1, len(extension.operations)):
                with pytest.raises(UnsupportedError, match=f"{extension.namespace} has no operation {number}; it has: 0 "):
                    device.queue.extension(extension.namespace, number)
        device.queue.wait_idle(LONG)

    def test_h17_namespaces_are_told_apart(self, device: Device) -> None:
        names = [extension.namespace for extension in device.info.extensions]
        assert len(set(names)) == len(names)
        assert all(names)
