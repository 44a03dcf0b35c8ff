"""H23: files on queues that run on host threads."""

import os
import resource
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.hal.conftest import ScratchDevice, ScratchQueue, memory_of

from remora.errors import BusyError, DeviceError, NotFoundError, Status, UnsupportedError, UsageError
from remora.hal.buffer import Access
from remora.hal.file import HostFile, open_error
from remora.hal.host_bytes import BytesInPlace

LONG = 10.0


class Watched(HostFile):
    """Notes which threads touch it."""

    def read_at(self, offset, into):
        self.device.threads.append(threading.get_ident())
        super().read_at(offset, into)


class FileQueue(ScratchQueue):
    def _host_bytes(self, buffer):
        return BytesInPlace(partial(memory_of, buffer))


class FileDevice(ScratchDevice):
    def __init__(self):
        super().__init__(1)
        self.threads = []
        self._queues = (FileQueue(self, 0),)

    def _host_file(self, fd, name, access):
        return Watched(self, fd, name, access)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    return path


def test_h23_a_file_is_never_touched_by_the_thread_that_submits(path):
    with FileDevice() as device, device.open_file(path) as file:
        buffer = device.allocate(4)
        for offset in range(6):
            device.queue.read_file(file, offset, buffer).wait(LONG)
            assert bytes(buffer.memory) == path.read_bytes()[offset : offset + 4]
        assert len(device.threads) == 6
        assert threading.get_ident() not in device.threads


def test_h23_a_driver_may_have_no_files(device, path):
    with device.open_file(path) as file, pytest.raises(UnsupportedError, match="go through host memory"):
        device.queue.read_file(file, 0, device.allocate(4))
    assert file.closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.fileno())


def test_h23_a_file_stays_open_for_what_uses_it(path):
    with FileDevice() as device:
        file, buffer = device.open_file(path), device.allocate(4)
        gate = device.semaphore()
        done = device.queue.read_file(file, 0, buffer, wait=gate.at(1))
        file.close()
        os.fstat(file.fileno())
        gate.signal(1)
        done.wait(LONG)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file.fileno())


def test_h23_errors_of_the_system_are_told_with_the_name(path):
    with FileDevice() as device, device.open_file(path, "r+") as file:
        with Path("/proc/self/mem").open("rb") as memory:
            os.dup2(memory.fileno(), file.fileno())  # address 0 is never there
        with pytest.raises(DeviceError, match="file: cannot read 4 bytes at 0: Input/output error") as caught:
            device.queue.read_file(file, 0, device.allocate(4)).wait(LONG)
        assert caught.value.code is Status.DATA_LOSS


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (2, NotFoundError, Status.NOT_FOUND),
        (13, UsageError, Status.PERMISSION_DENIED),
        (21, UsageError, Status.FAILED_PRECONDITION),
        (24, Exception, Status.RESOURCE_EXHAUSTED),
    ],
)
def test_h23_why_a_file_does_not_open(number, kind, code):
    error = open_error("some file", OSError(number, os.strerror(number)))
    assert isinstance(error, kind)
    assert error.code is code
    assert "some file" in str(error)


def test_h23_a_process_without_a_free_descriptor(path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with FileDevice() as device, path.open("rb") as stream:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (stream.fileno() + 1, hard))
        fillers = []
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while len(fillers) <= highest:
                    fillers.append(os.dup(stream.fileno()))
            for given in (stream, path):
                with pytest.raises(BusyError, match="close files"):
                    device.open_file(given)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fillers:
                os.close(fd)


def test_h23_what_a_file_says_of_itself(path):
    with FileDevice() as device, device.open_file(path, "r+") as file:
        assert file.access is Access.READ_WRITE
        assert (file.size, file.name) == (10, str(path))
        assert repr(file) == f"<Watched {str(path)!r} READ_WRITE>"
    assert repr(file).endswith("closed>")
