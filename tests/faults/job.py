"""One small piece of work that passes through everything: the measure of what an injected failure may do."""

import remora
from remora import samples
from remora.hal.command_buffer import Slot

MIB = 1 << 20
SOON = 20.0
DATA = bytes(range(256)) * (MIB // 256)
INDEX = b"".join(index.to_bytes(4, "little") for index in range(1024))


def job(uri, size=MIB):
    """Connect, allocate, fill, upload, dispatch, replay, download, close. Raises AssertionError for a wrong byte."""
    with remora.open(uri) as device:
        queue = device.queue
        kernel = device.load(samples.load("vector"))["fill_index"]
        source, target = device.allocate(size), device.allocate(size)
        data = DATA * -(-size // MIB)
        queue.fill(target, b"\x07")
        queue.update(source, data[:size])
        queue.dispatch(kernel, kernel.grid_for(1024), [target.view(0, 4096)], (1024, 0))
        with device.command_buffer(slots=1) as commands:
            commands.copy(source, Slot(0), 4096)
            commands.seal()
            queue.execute(commands, [target.view(8192, 4096)])
            queue.execute(commands, [target.view(16384, 4096)])
            small = bytes(target.read(0, 64, timeout=SOON))
            queue.read(target, moved := bytearray(size)).wait(SOON)
            whole = bytes(target.read(timeout=SOON))
        wanted = bytearray(b"\x07" * size)
        wanted[:4096] = INDEX
        wanted[8192:12288] = wanted[16384:20480] = DATA[:4096]
        assert small == wanted[:64], "a wrong byte in an inline read"
        assert moved == wanted, "a wrong byte in a download"
        assert whole == wanted, "a wrong byte in memory that is read where it is"
