"""A small image pipeline: two pictures are blended on the device, and PNG files show the picture before and after."""

import struct
import sys
import zlib
from array import array
from math import hypot
from pathlib import Path

from remora import samples
from remora.graph import HOST_VISIBLE, Runtime

WIDTH, HEIGHT = 320, 200
N = WIDTH * HEIGHT


def write_png(path: str, pixels: array) -> None:
    """Gray values of 0 to 1 as an 8-bit PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (bytes(min(255, max(0, round(255 * p))) for p in pixels[row : row + WIDTH]) for row in range(0, N, WIDTH))
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def main(uri: str) -> None:
    stripes = array("f", (float((x // 16 + y // 16) % 2) for y in range(HEIGHT) for x in range(WIDTH)))
    light = array("f", (1 - hypot(x - WIDTH / 2, y - HEIGHT / 2) / 190 for y in range(HEIGHT) for x in range(WIDTH)))
    after = array("f", bytes(4 * N))
    with Runtime(uri) as runtime:
        saxpy = runtime.device().load(samples.load("vector"))["saxpy_f32"]
        picture, lamp, shown = runtime.allocate(4 * N), runtime.allocate(4 * N), runtime.allocate(4 * N, HOST_VISIBLE)
        graph = runtime.graph("blend")
        graph.upload(picture, stripes)
        graph.upload(lamp, light)
        graph.kernel(saxpy, [picture, lamp], (N, -0.5))  # lamp = -0.5 * picture + lamp
        graph.copy(lamp, shown)
        graph.call(lambda memory: print(f"{len(memory):,} bytes are ready on the device"), [(shown, 1)])
        graph.download(shown, after)
        replay = graph.prepare()
        replay.submit().wait(timeout=30)
        replay.show("blend.svg")
    assert all(abs(b - (a * -0.5 + c)) < 1e-6 for a, b, c in zip(stripes, after, light, strict=True))
    write_png("before.png", stripes)
    write_png("after.png", after)
    print("see before.png, after.png and blend.svg")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
