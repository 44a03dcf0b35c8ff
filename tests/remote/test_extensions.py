"""H17: the null driver's extension, here and behind a server in another process."""

import pytest
from tests.remote.raw import raw_client

import remora
from remora.errors import ClosedError, Status, UnsupportedError, UsageError
from remora.testing.server import ServerProcess
from remora.wire.extension import EXTENSION, encode_extension

LONG = 20.0
REVERSE, XOR = 0, 1


@pytest.fixture(scope="module")
def server():
    with ServerProcess(device=("null",)) as server:
        yield server


@pytest.fixture(params=["here", "there"])
def device(request, server):
    with remora.open("null" if request.param == "here" else server.uri) as device:
        yield device


def test_h17_the_device_says_which_operations_there_are(device):
    (extension,) = device.info.extensions
    assert (extension.namespace, extension.operations) == ("null.bytes", ("reverse", "xor"))


def test_h17_operations_run_in_the_order_of_the_queue(device):
    queue, gate = device.queue, device.semaphore()
    with device.upload(b"abcdef") as buffer, device.upload(b"12") as other:
        queue.extension("null.bytes", REVERSE, buffers=[buffer.view(1, 4), other], wait=gate.at(1), signal=gate.at(2))
        queue.extension("null.bytes", XOR, bytearray(b"\x20"), [buffer.view(0, 3)])
        late = queue.allocate(3)[0]
        queue.fill(late, b"\x0f")
        done = queue.extension("null.bytes", XOR, b"\xf0", [late])
        gate.signal(1)
        done.wait(LONG)
        gate.wait(2, LONG)
        assert bytes(buffer.read(timeout=LONG)) == b"AEDcbf"
        assert bytes(other.read(timeout=LONG)) == b"21"
        assert bytes(late.read(timeout=LONG)) == b"\xff\xff\xff"


def test_h17_what_the_extension_finds_wrong_fails_the_queue(device):
    with device.upload(b"abcd") as buffer:
        failing = device.queue.extension("null.bytes", XOR, b"two", [buffer])
        with pytest.raises(UsageError, match=r"null\.bytes xor takes 1 bytes of payload, not 3"):
            failing.wait(LONG)
        into = bytearray(4)
        device.queues[1].read(buffer, into).wait(LONG)
        assert into == b"abcd"


def test_h17_what_can_be_known_before_is_refused_at_once(device):
    queue, buffer = device.queue, device.allocate(4)
    with pytest.raises(UnsupportedError, match="has no operation 2; it has: 0 reverse, 1 xor"):
        queue.extension("null.bytes", 2)
    for payload, buffers in ((bytes(65_537), []), (b"", [buffer] * 65)):
        with pytest.raises(UsageError, match="an extension takes 65536 and 64: use a buffer") as caught:
            queue.extension("null.bytes", REVERSE, payload, buffers)
        assert caught.value.code is Status.OUT_OF_RANGE
    buffer.close()
    with pytest.raises(ClosedError):
        queue.extension("null.bytes", REVERSE, buffers=[buffer])
    queue.wait_idle(LONG)


@pytest.mark.parametrize(("namespace", "operation"), [("nobody.knows", 0), ("null.bytes", 7)])
def test_h25_a_client_that_does_not_look_into_the_catalog(server, namespace, operation):
    with raw_client(server.uri) as raw:
        epoch = raw.command(0, EXTENSION, encode_extension(namespace, operation, b"", []))
        raw.send()
        failure = raw.advanced(0, epoch).failure
        assert isinstance(failure, UnsupportedError)
        assert "null.bytes" in str(failure)
