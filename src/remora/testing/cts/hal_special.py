"""HAL conformance: code that is specialized when it is loaded, and memory that it owns under names (H19)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import ClosedError, NotFoundError, UnsupportedError, UsageError
from remora.hal.executable import ConstantRule
from remora.hal.exports import Export
from remora.hal.specialization import ExecutableInfo, GlobalRule, SpecializationRule
from remora.testing.cts.hal_factory import LONG, HalFactory, hold, words

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.executable import Executable

__all__ = ["TestGlobals", "TestReflection", "TestSpecialization"]

SQUARES = words(*(number * number for number in range(16)))


def revealed(device: Device, executable: Executable) -> bytes:
    """The table of constants as the code sees it."""
    with device.upload(bytes(20)) as out:
        device.queue.dispatch(executable["reveal"], (1, 1, 1), [out]).wait(LONG)
        return bytes(out.read(timeout=LONG))


class TestSpecialization:
    """H19: specialization constants are declared, checked, and seen by the code from its first dispatch on."""

    def test_h19_the_code_sees_what_was_given(self, factory: HalFactory, device: Device) -> None:
        constants = {"FACTOR": 0xFFFFFFFF, "OFFSET": -5, "SCALE": -2.0, "BIG": 0x0123456789ABCDEF}
        executable = device.load(factory.need_special(), constants)
        assert executable.constants == constants
        assert revealed(device, executable) == words(-1, -5, 0xC0000000, 0x89ABCDEF, 0x01234567)

    def test_h19_defaults_stand_for_what_was_not_given(self, factory: HalFactory, device: Device) -> None:
        executable = device.load(factory.need_special(), constants={"FACTOR": 3})
        assert executable.constants == {"FACTOR": 3, "OFFSET": -1, "SCALE": 1.0, "BIG": 1 << 40}
        assert revealed(device, executable) == words(3, -1, 0x3F800000, 0, 256)

    def test_h19_two_specializations_do_not_mix(self, factory: HalFactory, device: Device) -> None:
        bundle = factory.need_special()
        loaded = [device.load(bundle, {"FACTOR": factor, "OFFSET": 100 * factor}) for factor in (2, 5)]
        with device.upload(words(1, 2, 3)) as x, device.allocate(12) as out:
            for executable, expected in zip(loaded, ((202, 204, 206), (505, 510, 515)), strict=True):
                device.queue.dispatch(executable["affine_u32"], (1, 1, 1), [x, out], (3,))
                assert bytes(out.read(timeout=LONG)) == words(*expected)
            loaded[0].close()
            device.queue.dispatch(loaded[1]["affine_u32"], (1, 1, 1), [x, out], (1,))
            assert bytes(out.read(0, 4, timeout=LONG)) == words(505)

    def test_h19_a_constant_without_default_has_to_be_given(self, factory: HalFactory, device: Device) -> None:
        with pytest.raises(UsageError, match=r"FACTOR \(u32\) has no default: give constants=\{'FACTOR'"):
            device.load(factory.need_special())

    def test_h19_an_unknown_constant_is_named_with_what_is_there(self, factory: HalFactory, device: Device) -> None:
        with pytest.raises(NotFoundError, match=r"no specialization constant 'FACTORS'; the code has: FACTOR: u32, OFFSET: i32"):
            device.load(factory.need_special(), {"FACTORS": 1})
        with pytest.raises(NotFoundError, match=r"'n'; the code has: none"):
            device.load(factory.vector, {"n": 1})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("FACTOR", -1),
            ("FACTOR", 1 << 32),
            ("FACTOR", 1.5),
            ("FACTOR", "3"),
            ("OFFSET", 1 << 31),
            ("SCALE", 1e39),
            ("SCALE", "x"),
            ("BIG", -1),
        ],
    )
    def test_h19_a_value_that_does_not_fit_is_refused(self, factory: HalFactory, device: Device, name: str, value: Any) -> None:
        bundle = factory.need_special()
        with pytest.raises(UsageError, match=f"the specialization constant {name} is .* does not fit"):
            device.load(bundle, {"FACTOR": 1, name: value})
        device.load(bundle, {"FACTOR": 1}).close()

    def test_h25_a_manifest_that_lies_about_the_constants_is_refused(self, factory: HalFactory, device: Device) -> None:
        bundle = factory.need_special()
        target, artifact = bundle.select(device.targets)
        for rules in ((), (SpecializationRule("one", "u64"),)):
            info = ExecutableInfo(bundle.kernels, rules)
            with pytest.raises(UsageError, match="takes 5 words of specialization constants, its manifest declares"):
                device.load_artifact(target, artifact, info, dict.fromkeys((rule.name for rule in rules), 1))
        device.queue.barrier().wait(LONG)


def tally(executable: Executable, amount: int, grid: int = 1) -> None:
    """Have `grid` workgroups add `amount` to the global `total`."""
    executable.device.queue.dispatch(executable["tally"], (grid, 1, 1), [], (amount,))


class TestGlobals:
    """H19: the memory that code owns is a buffer under its name, and each load has its own."""

    @pytest.fixture
    def special(self, factory: HalFactory, device: Device) -> Executable:
        """Code with globals, loaded on `device`; skips the test when there is none."""
        return device.load(factory.need_special(), {"FACTOR": 1})

    def test_h19_a_global_holds_what_the_code_was_built_with(self, special: Executable) -> None:
        assert list(special.globals) == ["total", "table"]
        assert len(special.globals) == 2
        assert "total" in special.globals
        assert "n" not in special.globals
        table = special.globals["table"]
        assert (table.size, table.device) == (64, special.device)
        assert bytes(table.read(timeout=LONG)) == SQUARES

    def test_h19_the_program_reads_what_the_code_wrote(self, special: Executable) -> None:
        total = special.globals["total"]
        tally(special, 3)
        tally(special, 2, grid=50)
        assert bytes(total.read(timeout=LONG)) == words(103)
        tally(special, 0xFFFFFFFD)
        assert bytes(special.globals["total"].read(timeout=LONG)) == words(100)

    def test_h19_the_code_reads_what_the_program_wrote(self, special: Executable) -> None:
        device, table = special.device, special.globals["table"]
        table.write(words(7, 8), 4, timeout=LONG)
        device.queue.fill(table.view(60, 4), b"\x01")
        with device.upload(words(0, 1, 2, 3, 15)) as x, device.upload(bytes(20)) as out:
            device.queue.dispatch(special["look_up"], (1, 1, 1), [x, out], (5,))
            assert bytes(out.read(timeout=LONG)) == words(0, 7, 8, 9, 0x01010101)

    def test_h19_a_global_is_a_buffer_like_any_other(self, special: Executable) -> None:
        device, table = special.device, special.globals["table"]
        with device.allocate(64) as copy:
            device.queue.copy(table, copy)
            device.queue.copy(copy.view(0, 32), table.view(32, 32))
            assert bytes(table.read(timeout=LONG)) == SQUARES[:32] * 2
        with table.map() as mapping:
            mapping.view[:4] = words(9)
        with device.upload(bytes(8)) as out:
            device.queue.dispatch(special["look_up"], (1, 1, 1), [table.view(56, 8), out], (2,))
            assert bytes(out.read(timeout=LONG)) == words(16, 1)
        assert bytes(table.read(0, 4, timeout=LONG)) == words(9)

    def test_h19_two_loads_do_not_share_their_globals(self, factory: HalFactory, device: Device, special: Executable) -> None:
        other = device.load(factory.need_special(), {"FACTOR": 1})
        tally(special, 5)
        tally(other, 70)
        assert bytes(special.globals["total"].read(timeout=LONG)) == words(5)
        assert bytes(other.globals["total"].read(timeout=LONG)) == words(70)
        special.close()
        tally(other, 7)
        assert bytes(other.globals["total"].read(timeout=LONG)) == words(77)

    def test_h18_a_recording_uses_a_global(self, special: Executable) -> None:
        device, total = special.device, special.globals["total"]
        with device.command_buffer() as commands:
            commands.fill(total, words(10))
            commands.dispatch(special["tally"], (3, 1, 1), [], (4,))
        for _ in range(2):
            device.queue.execute(commands)
            assert bytes(total.read(timeout=LONG)) == words(22)

    def test_h19_an_unknown_global_is_named_with_what_is_there(self, factory: HalFactory, special: Executable) -> None:
        with pytest.raises(NotFoundError, match="no global 'sum'; this executable has: total, table"):
            special.globals["sum"]
        with pytest.raises(NotFoundError, match="no global 'sum'; this executable has: none"):
            special.device.load(factory.vector).globals["sum"]

    def test_h19_a_closed_global_is_made_anew(self, special: Executable) -> None:
        first = special.globals["total"]
        assert special.globals["total"] is first
        tally(special, 4)
        first.close()
        with pytest.raises(ClosedError):
            first.read(timeout=LONG)
        assert bytes(special.globals["total"].read(timeout=LONG)) == words(4)

    def test_h19_globals_close_with_their_executable(self, special: Executable) -> None:
        total, table = special.globals["total"], special.globals["table"]
        with table.map():
            with pytest.raises(UsageError, match="is mapped"):
                special.close()
            assert not special.closed
        special.close()
        special.close()
        assert total.closed
        assert table.closed
        with pytest.raises(ClosedError, match="load it again"):
            special.globals["total"]

    def test_h27_a_global_outlives_close_until_its_operations_are_done(self, special: Executable) -> None:
        device = special.device
        with device.upload(bytes(64)) as kept:
            gate = hold(device.queue)
            tally(special, 6)
            late = device.queue.copy(special.globals["table"], kept)
            special.close()
            gate.semaphore.signal(1)
            late.wait(LONG)
            assert bytes(kept.read(timeout=LONG)) == SQUARES

    def test_h19_globals_are_none_of_the_devices_buffers(self, special: Executable) -> None:
        before = special.device.statistics()
        tables = [special.globals["table"], special.globals["total"]]
        for table in tables:
            table.close()
        special.globals["total"].read(timeout=LONG)
        assert special.device.statistics().buffers == before.buffers
        assert special.device.statistics().bytes_allocated == before.bytes_allocated

    @pytest.mark.parametrize(
        ("rule", "error", "message"),
        [
            (GlobalRule("sum", 4), NotFoundError, "exports no memory 'sum'"),
            (GlobalRule("sum", 4, "totals"), NotFoundError, "exports no memory 'totals'"),
            (GlobalRule("total", 8), UsageError, "total has 4 bytes in the artifact, its manifest says 8"),
            (GlobalRule("sum", 63, "table"), UsageError, "sum has 64 bytes in the artifact, its manifest says 63"),
        ],
    )
    def test_h25_a_manifest_that_lies_about_the_globals_is_refused(
        self, factory: HalFactory, device: Device, rule: GlobalRule, error: type[Exception], message: str
    ) -> None:
        bundle = factory.need_special()
        target, artifact = bundle.select(device.targets)
        info = ExecutableInfo(bundle.kernels, bundle.info.constants, (rule,))
        with pytest.raises(error, match=message) as caught:
            device.load_artifact(target, artifact, info, {"FACTOR": 1})
        if error is NotFoundError and factory.lists_memory:
            assert re.search("it exports: .*total", str(caught.value))
        device.load_artifact(target, artifact, bundle.info, {"FACTOR": 1}).close()

    def test_h19_a_device_without_globals_says_so(self, factory: HalFactory, device: Device) -> None:
        if factory.executes:
            pytest.skip("this device has globals, or code that shows them (HalFactory.executes)")
        target, artifact = factory.vector.select(device.targets)
        executable = device.load_artifact(target, artifact, ExecutableInfo(factory.vector.kernels, (), (GlobalRule("g", 4),)))
        with pytest.raises(UnsupportedError, match="no named globals"):
            executable.globals["g"]
        executable.close()


class TestReflection:
    """H19: what an executable offers, as its manifest says and as its artifact says itself; the two agree."""

    def test_h19_the_manifest_is_there_to_read(self, factory: HalFactory, device: Device) -> None:
        executable = device.load(factory.vector)
        assert executable.info == factory.vector.info
        assert executable.info.kernels == tuple(kernel.info for kernel in executable.values())
        assert executable.constants == {}
        assert len(executable.globals) == 0

    def test_h19_the_artifact_tells_its_exports(self, factory: HalFactory, device: Device) -> None:
        executable = device.load(factory.need_special(), {"FACTOR": 1})
        assert executable.exports == (
            Export("reveal", 1, 0, (1, 1, 1)),
            Export("affine_u32", 2, 1, (1, 1, 1)),
            Export("tally", 0, 1, (1, 1, 1)),
            Export("look_up", 2, 1, (1, 1, 1)),
        )

    def test_h19_exports_that_the_manifest_does_not_name_are_told_too(self, factory: HalFactory, device: Device) -> None:
        bundle = factory.need_special()
        target, artifact = bundle.select(device.targets)
        info = ExecutableInfo(bundle.kernels[2:3], bundle.info.constants)
        executable = device.load_artifact(target, artifact, info, {"FACTOR": 1})
        assert list(executable) == ["tally"]
        assert [export.name for export in executable.exports] == ["reveal", "affine_u32", "tally", "look_up"]

    @pytest.mark.parametrize(
        ("kernel", "change", "message"),
        [
            (0, {"bindings": ()}, "reveal was compiled with 1 bindings, its manifest has 0"),
            (1, {"constants": (ConstantRule("n", "u64"),)}, "affine_u32 was compiled with 1 constants, its manifest has 2"),
            (2, {"workgroup": (8, 1, 1)}, r"tally was compiled for workgroups of \(1, 1, 1\), its manifest says \(8, 1, 1\)"),
            (3, {"export": "look_down"}, "no export 'look_down'; it has: reveal, affine_u32, tally, look_up"),
        ],
    )
    def test_h25_a_manifest_that_lies_about_a_kernel_is_refused(
        self, factory: HalFactory, device: Device, kernel: int, change: dict[str, Any], message: str
    ) -> None:
        bundle = factory.need_special()
        target, artifact = bundle.select(device.targets)
        info = ExecutableInfo((replace(bundle.kernels[kernel], **change),), bundle.info.constants)
        with pytest.raises(UsageError, match=message):
            device.load_artifact(target, artifact, info, {"FACTOR": 1})
        device.queue.barrier().wait(LONG)

    def test_h19_a_closed_executable_is_not_asked(self, factory: HalFactory, device: Device) -> None:
        executable = device.load(factory.vector)
        executable.close()
        with pytest.raises(ClosedError, match="load it again"):
            executable.exports  # noqa: B018

    def test_h19_a_device_that_looks_into_no_artifact_says_so(self, factory: HalFactory, device: Device) -> None:
        executable = device.load(factory.vector)
        if factory.checks_artifacts:
            wanted = {kernel.export or kernel.name for kernel in executable.info.kernels}
            assert {export.name for export in executable.exports} >= wanted
            return
        with pytest.raises(UnsupportedError, match="do not look into artifacts"):
            executable.exports  # noqa: B018
