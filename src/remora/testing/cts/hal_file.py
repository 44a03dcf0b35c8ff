"""HAL conformance: files (H23). Queues read a program's own files into buffers and write buffers to them, in their order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import ClosedError, DeviceError, NotFoundError, Status, UnsupportedError, UsageError
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, MIB, blob, hold, second_queue
from remora.testing.cts.hal_random import UNCHECKED

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.file import File

__all__ = ["TestFailedFiles", "TestFiles", "TestOpenFiles", "TestRandomFiles"]

#: Bytes around every border that a driver or a link may have.
SIZES = (0, 1, 4095, (64 << 10) + 1, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 13 * MIB + 5)
MAX_OFFSET = (1 << 63) - 1


def descriptors() -> dict[str, str]:
    """The open descriptors of this process that are files with a path."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:
            continue
    return {fd: name for fd, name in found.items() if name.startswith("/") and not name.startswith(("/dev", "/memfd", "/proc"))}


class WithFile:
    """Gives each test a file."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A file of 1000 bytes."""
        path = tmp_path / "some file.bin"
        path.write_bytes(blob(1000))
        return path


class TestFiles(WithFile):
    """H23: bytes move between files and buffers."""

    @pytest.mark.parametrize("size", SIZES)
    def test_h23_a_file_of_any_size_comes_and_goes(self, device: Device, tmp_path: Path, size: int) -> None:
        data = blob(size)
        (tmp_path / "in").write_bytes(data)
        with device.open_file(tmp_path / "in") as file, device.open_file(tmp_path / "out", "w") as out:
            assert (file.size, out.size) == (size, 0)
            with device.allocate(size) as buffer:
                device.queue.read_file(file, 0, buffer)
                device.queue.write_file(buffer, out).wait(LONG)
        assert same((tmp_path / "out").read_bytes(), data)

    def test_h23_a_part_of_a_file_goes_to_a_part_of_a_buffer(self, device: Device, path: Path) -> None:
        with device.open_file(path) as file, device.upload(bytes(100)) as buffer:
            device.queue.read_file(file, 990, buffer.view(5, 10))
            assert bytes(buffer.read(timeout=LONG)) == bytes(5) + path.read_bytes()[990:] + bytes(85)

    def test_h23_a_part_of_a_buffer_goes_to_a_part_of_a_file(self, device: Device, path: Path) -> None:
        before = path.read_bytes()
        with device.open_file(path, "r+") as file, device.upload(blob(100, 2)) as buffer:
            device.queue.write_file(buffer.view(10, 20), file, 300).wait(LONG)
        assert path.read_bytes() == before[:300] + blob(100, 2)[10:30] + before[320:]

    def test_h23_a_file_grows_as_needed(self, device: Device, path: Path) -> None:
        before = path.read_bytes()
        with device.open_file(path, "r+") as file, device.upload(b"end") as buffer:
            device.queue.write_file(buffer, file, 1500).wait(LONG)
            with device.allocate(503) as tail:
                device.queue.read_file(file, 1000, tail)
                assert bytes(tail.read(timeout=LONG)) == bytes(500) + b"end"
        assert path.read_bytes() == before + bytes(500) + b"end"

    def test_h23_a_queue_reads_what_it_has_written(self, device: Device, path: Path) -> None:
        size = 5 * MIB
        with device.open_file(path, "w+") as file, device.allocate(size) as buffer, device.allocate(size) as other:
            for turn in range(4):
                device.queue.fill(buffer, bytes([turn + 1]))
                device.queue.write_file(buffer, file)
                device.queue.fill(buffer, b"\0")
                device.queue.read_file(file, 0, other)
                assert same(other.read(timeout=LONG), bytes([turn + 1]) * size)

    def test_h23_a_read_behind_a_wait_sees_what_was_written_until_then(self, device: Device, path: Path) -> None:
        with device.open_file(path) as file, device.allocate(1000) as buffer:
            ready = device.semaphore().at(1)
            done = device.queue.read_file(file, 0, buffer, wait=ready)
            path.write_bytes(blob(1000, 3))
            ready.semaphore.signal(1)
            done.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == blob(1000, 3)

    def test_h23_a_read_behind_a_held_queue_sees_what_was_written_until_then(self, device: Device, path: Path) -> None:
        with device.open_file(path) as file, device.allocate(1000) as buffer:
            gate = hold(device.queue)
            device.queue.read_file(file, 0, buffer)
            path.write_bytes(blob(1000, 4))
            gate.semaphore.signal(1)
            assert bytes(buffer.read(timeout=LONG)) == blob(1000, 4)

    def test_h23_one_queue_reads_what_another_has_written(self, device: Device, path: Path) -> None:
        other = second_queue(device)
        turns = device.semaphore()
        size = MIB + 3
        with device.open_file(path, "w+") as file, device.allocate(size) as source, device.allocate(size) as target:
            for turn in range(1, 5):
                device.queue.fill(source.view(0, MIB), bytes([turn]))
                written = device.queue.write_file(source, file, signal=turns.at(2 * turn - 1))
                read = other.read_file(file, 0, target, wait=turns.at(2 * turn - 1), signal=turns.at(2 * turn))
                turns.wait(2 * turn, LONG)
                assert written.done
                assert read.done
                assert same(bytes(target.read(timeout=LONG))[:MIB], bytes([turn]) * MIB)

    def test_h23_files_behind_something_slow_hold_up_no_other_queue(self, device: Device, path: Path) -> None:
        other, size = second_queue(device), 9 * MIB
        path.write_bytes(blob(size))
        gate = device.event()
        with device.command_buffer() as commands:
            commands.wait_event(gate)
        with device.open_file(path) as file, device.allocate(size) as first, device.allocate(size) as second:
            device.queue.execute(commands)
            behind = [device.queue.read_file(file, 0, first) for _ in range(4)]
            for _ in range(3):
                other.read_file(file, 0, second).wait(LONG)
            assert not behind[0].done
            gate.signal()
            behind[-1].wait(LONG)
            for buffer in (first, second):
                assert same(buffer.read(timeout=LONG), path.read_bytes())

    def test_h23_several_queues_use_one_file_at_once(self, device: Device, tmp_path: Path) -> None:
        size = 5 * MIB + 1
        parts = [blob(size, seed) for seed in range(len(device.queues))]
        with device.open_file(tmp_path / "all", "w+") as file:
            buffers = [device.upload(part) for part in parts]
            points = [
                queue.write_file(buffer, file, number * size)
                for number, (queue, buffer) in enumerate(zip(device.queues, buffers, strict=True))
            ]
            for point in points:
                point.wait(LONG)
            for buffer in buffers:
                buffer.close()
        assert (tmp_path / "all").read_bytes() == b"".join(parts)

    def test_h23_what_is_closed_meanwhile_is_held_until_it_is_done(self, device: Device, path: Path) -> None:
        gate = hold(device.queue)
        file, out = device.open_file(path), device.open_file(path.with_name("copy"), "w")
        buffer = device.allocate(1000)
        device.queue.read_file(file, 0, buffer)
        done = device.queue.write_file(buffer, out)
        for thing in (file, out, buffer):
            thing.close()
            thing.close()
            assert thing.closed
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert path.with_name("copy").read_bytes() == path.read_bytes()

    def test_h23_nothing_stays_open(self, device: Device, path: Path) -> None:
        before = descriptors()
        with device.allocate(1000) as buffer:
            for _ in range(3):
                with device.open_file(path, "r+") as file:
                    device.queue.read_file(file, 0, buffer)
                    device.queue.write_file(buffer, file)
                dropped = device.open_file(path)
                device.queue.read_file(dropped, 0, buffer).wait(LONG)
                del dropped
            with device.open_file(path) as file:
                with pytest.raises(UsageError):
                    device.queue.read_file(file, 0, buffer.view(0, 2000))
                failed = device.queue.read_file(file, 1, buffer)
                with pytest.raises(UsageError):
                    failed.wait(LONG)
        device.close()
        assert descriptors() == before


class TestOpenFiles(WithFile):
    """H23: what can be opened, how, and what is refused."""

    def test_h23_a_path_a_descriptor_or_an_open_file(self, device: Device, path: Path) -> None:
        with path.open("rb") as stream, device.allocate(1000) as buffer:
            for way in (path, str(path), stream.fileno(), stream):
                with device.open_file(way) as file:
                    device.queue.fill(buffer, b"\0")
                    device.queue.read_file(file, 0, buffer)
                    assert bytes(buffer.read(timeout=LONG)) == path.read_bytes()
            assert not stream.closed
            assert stream.read(3) == path.read_bytes()[:3]

    def test_h23_the_callers_descriptor_may_be_closed(self, device: Device, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY)
        with device.open_file(fd) as file, device.allocate(1000) as buffer:
            os.close(fd)
            device.queue.read_file(file, 0, buffer)
            assert bytes(buffer.read(timeout=LONG)) == path.read_bytes()

    def test_h23_what_an_open_file_holds_back_is_written_first(self, device: Device, path: Path) -> None:
        with path.open("r+b", buffering=4096) as stream, device.allocate(1000) as buffer:
            stream.write(b"held back")
            with device.open_file(stream, "r+") as file:
                device.queue.read_file(file, 0, buffer)
                assert bytes(buffer.read(0, 9, timeout=LONG)) == b"held back"

    def test_h23_a_file_without_a_name(self, device: Device) -> None:
        fd = os.memfd_create("nameless")
        try:
            with device.open_file(fd, "r+") as file, device.upload(blob(70_000)) as buffer:
                device.queue.write_file(buffer, file, 5).wait(LONG)
            assert os.pread(fd, 80_000, 0) == bytes(5) + blob(70_000)
        finally:
            os.close(fd)

    @pytest.mark.parametrize(("mode", "left"), [("r", b"old"), ("r+", b"old"), ("w", b""), ("w+", b"")])
    def test_h23_a_mode_says_what_becomes_of_what_is_there(self, device: Device, path: Path, mode: str, left: bytes) -> None:
        path.write_bytes(b"old")
        with device.open_file(path, mode) as file:
            assert file.size == len(left)
            assert path.read_bytes() == left

    @pytest.mark.parametrize("mode", ["w", "w+"])
    def test_h23_a_file_is_made(self, device: Device, tmp_path: Path, mode: str) -> None:
        device.open_file(tmp_path / "fresh", mode).close()
        assert (tmp_path / "fresh").read_bytes() == b""

    @pytest.mark.parametrize("mode", ["r", "r+"])
    def test_h23_a_file_that_is_not_there(self, device: Device, tmp_path: Path, mode: str) -> None:
        with pytest.raises(NotFoundError, match="nowhere"):
            device.open_file(tmp_path / "nowhere", mode)

    @pytest.mark.parametrize("mode", ["", "a", "rb", "x", "rw", 7])
    def test_h23_a_mode_that_is_none(self, device: Device, path: Path, mode: Any) -> None:
        with pytest.raises(UsageError, match=r"r, r\+, w, w\+"):
            device.open_file(path, mode)
        with pytest.raises(UsageError, match=r"r, r\+, w, w\+"):
            device.server_file("any", mode)
        assert len(path.read_bytes()) == 1000

    def test_h23_only_regular_files(self, device: Device, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for other in (tmp_path, tmp_path / "pipe", "/dev/null"):
            with pytest.raises(UsageError, match="regular file"):
                device.open_file(other)
        reader, writer = os.pipe()
        try:
            with pytest.raises(UsageError, match="regular file"):
                device.open_file(reader)
        finally:
            os.close(reader)
            os.close(writer)

    @pytest.mark.parametrize("thing", [-1, 1 << 40, None, 1.5, b"path", object(), "a\0b"])
    def test_h23_what_is_no_file_at_all(self, device: Device, thing: Any) -> None:
        with pytest.raises(UsageError):
            device.open_file(thing)

    def test_h23_a_descriptor_does_what_it_was_opened_for(self, device: Device, path: Path) -> None:
        for flags, refused in ((os.O_RDONLY, ("r+", "w", "w+")), (os.O_WRONLY, ("r", "r+", "w+")), (os.O_PATH, ("r", "w"))):
            fd = os.open(path, flags)
            try:
                for mode in refused:
                    with pytest.raises(UsageError) as caught:
                        device.open_file(fd, mode)
                    assert caught.value.code is Status.PERMISSION_DENIED
            finally:
                os.close(fd)
        assert len(path.read_bytes()) == 1000

    def test_h23_a_descriptor_that_appends_is_not_written(self, device: Device, path: Path) -> None:
        with path.open("ab") as stream, pytest.raises(UsageError, match="appending"):
            device.open_file(stream, "w")

    def test_h23_no_file_of_a_closed_device(self, device: Device, path: Path) -> None:
        device.close()
        with pytest.raises(ClosedError):
            device.open_file(path)
        with pytest.raises(ClosedError):
            device.server_file("any")

    def test_h23_a_name_that_no_server_offers(self, device: Device) -> None:
        """On a device without a server there is nothing to offer names; a server without names refuses them all."""
        with pytest.raises((UnsupportedError, UsageError)) as caught:
            device.server_file("no such name")
        assert caught.value.code in (Status.UNIMPLEMENTED, Status.PERMISSION_DENIED)

    def test_h23_a_file_of_another_device(self, device: Device, second: Device, path: Path) -> None:
        with second.open_file(path) as file, device.allocate(8) as buffer, pytest.raises(UsageError, match="another device"):
            device.queue.read_file(file, 0, buffer)

    def test_h23_a_buffer_of_another_device(self, device: Device, second: Device, path: Path) -> None:
        with device.open_file(path) as file, second.allocate(8) as buffer, pytest.raises(UsageError, match="another device"):
            device.queue.read_file(file, 0, buffer)

    def test_h23_a_use_that_the_mode_does_not_allow(self, device: Device, path: Path) -> None:
        with device.open_file(path) as file, device.allocate(8) as buffer, pytest.raises(UsageError) as caught:
            device.queue.write_file(buffer, file)
        assert caught.value.code is Status.PERMISSION_DENIED
        with device.open_file(path, "w") as file, device.allocate(8) as buffer, pytest.raises(UsageError) as caught:
            device.queue.read_file(file, 0, buffer)
        assert caught.value.code is Status.PERMISSION_DENIED

    @pytest.mark.parametrize("offset", [-1, MAX_OFFSET, MAX_OFFSET - 7, 1 << 64])
    def test_h23_an_offset_that_no_file_has(self, device: Device, path: Path, offset: int) -> None:
        with device.open_file(path, "r+") as file, device.allocate(8) as buffer:
            with pytest.raises(UsageError) as caught:
                device.queue.read_file(file, offset, buffer)
            assert caught.value.code is Status.OUT_OF_RANGE
            with pytest.raises(UsageError):
                device.queue.write_file(buffer, file, offset)
            device.queue.read_file(file, 0, buffer).wait(LONG)

    def test_h23_a_closed_file_or_buffer(self, device: Device, path: Path) -> None:
        file, buffer = device.open_file(path), device.allocate(8)
        buffer.close()
        with pytest.raises(ClosedError):
            device.queue.read_file(file, 0, buffer)
        file.close()
        with device.allocate(8) as other, pytest.raises(ClosedError, match="open it again"):
            device.queue.read_file(file, 0, other)
        device.queue.wait_idle(LONG)


class TestFailedFiles(WithFile):
    """H23, H13: what goes wrong with a file fails the queue, and the cause names the file."""

    def fails(self, device: Device, file: File, offset: int, size: int) -> UsageError:
        """Read what is not there, and see that the queue ends with it and what is behind it too."""
        with device.allocate(size) as buffer:
            hurt = device.semaphore()
            done = device.queue.read_file(file, offset, buffer, signal=hurt.at(1))
            with pytest.raises(UsageError) as caught:
                done.wait(LONG)
            with pytest.raises(UsageError):
                hurt.wait(1, LONG)
            with pytest.raises(UsageError):
                device.queue.barrier()
        assert caught.value.code is Status.OUT_OF_RANGE
        assert file.name in str(caught.value)
        return caught.value

    @pytest.mark.parametrize(("offset", "size"), [(0, 1001), (999, 2), (1000, 1), (5000, 1), (0, 9 * MIB)])
    def test_h23_a_file_that_ends_too_early(self, device: Device, path: Path, offset: int, size: int) -> None:
        with device.open_file(path) as file:
            assert "ends at byte" in str(self.fails(device, file, offset, size))

    def test_h23_a_file_that_was_cut_meanwhile(self, device: Device, path: Path) -> None:
        path.write_bytes(blob(9 * MIB))
        with device.open_file(path) as file, device.allocate(9 * MIB) as buffer:
            device.queue.read_file(file, 0, buffer).wait(LONG)
            os.truncate(path, 5 * MIB)
            self.fails(device, file, 0, 9 * MIB)

    def test_h23_a_file_that_cannot_grow_so_far(self, device: Device, path: Path) -> None:
        with device.open_file(path, "r+") as file, device.upload(blob(MIB)) as buffer:
            done = device.queue.write_file(buffer, file, MAX_OFFSET - MIB)
            with pytest.raises(DeviceError) as caught:
                done.wait(LONG)
            assert caught.value.code is Status.DATA_LOSS
            assert path.name in str(caught.value)
            with pytest.raises(DeviceError):
                device.queue.barrier()

    def test_h13_another_queue_goes_on(self, device: Device, path: Path) -> None:
        other = second_queue(device)
        with device.open_file(path) as file, device.allocate(2000) as buffer:
            failed = device.queue.read_file(file, 0, buffer)
            other.read_file(file, 0, buffer.view(0, 1000)).wait(LONG)
            with pytest.raises(UsageError):
                failed.wait(LONG)
            into = bytearray(1000)
            other.read(buffer, into).wait(LONG)
            assert into == path.read_bytes()

    def test_h13_a_failed_wait_leaves_the_file_alone(self, device: Device, path: Path) -> None:
        before = path.read_bytes()
        with device.open_file(path, "r+") as file, device.upload(b"new") as buffer:
            gate = device.semaphore()
            done = device.queue.write_file(buffer, file, wait=gate.at(1))
            gate.fail(DeviceError("no"))
            with pytest.raises(DeviceError, match="no"):
                done.wait(LONG)
        assert path.read_bytes() == before

    def test_h27_a_device_is_closed_in_the_middle(self, device: Device, tmp_path: Path) -> None:
        before = descriptors()
        (tmp_path / "in").write_bytes(bytes(32 * MIB))
        with device.open_file(tmp_path / "in") as file, device.open_file(tmp_path / "out", "w") as out:
            buffer = device.allocate(32 * MIB)
            points = [device.queue.read_file(file, 0, buffer), device.queue.write_file(buffer, out)]
            device.close()
            for point in points:
                try:
                    point.wait(LONG)
                except ClosedError:
                    continue
        assert descriptors() == before


class TestRandomFiles:
    """H23: any sequence of operations leaves what it leaves in two byte arrays."""

    @settings(max_examples=15, deadline=None, suppress_health_check=UNCHECKED, database=None)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["read", "write", "fill"]),
                st.integers(0, 300_000),
                st.integers(0, 100_000),
                st.integers(0, 100_000),
                st.integers(1, 255),
            ),
            max_size=12,
        )
    )
    def test_h23_against_byte_arrays(self, device: Device, tmp_path: Path, steps: list[tuple[str, int, int, int, int]]) -> None:
        memory, disk = bytearray(100_000), bytearray(blob(50_000))
        (tmp_path / "random").write_bytes(disk)
        with device.open_file(tmp_path / "random", "r+") as file, device.upload(memory) as buffer:
            for what, place, offset, most, value in steps:
                start = place if what == "write" else min(place, len(disk))
                size = min(most, len(memory) - offset, len(disk) - start if what == "read" else most)
                view = buffer.view(offset, size)
                if what == "fill":
                    device.queue.fill(view, bytes([value]))
                    memory[offset : offset + size] = bytes([value]) * size
                elif what == "read":
                    device.queue.read_file(file, start, view)
                    memory[offset : offset + size] = disk[start : start + size]
                else:
                    device.queue.write_file(view, file, start)
                    disk += bytes(max(0, start - len(disk)) if size else 0)
                    disk[start : start + size] = memory[offset : offset + size]
            assert same(buffer.read(timeout=LONG), memory)
        assert same((tmp_path / "random").read_bytes(), disk)
