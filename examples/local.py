"""A kernel on this machine's processor, or any URI: two arrays in, one dispatch, an exact array out. Needs nothing but remora."""

import sys
from array import array

import remora
from remora import samples


def main(uri: str) -> None:
    n = 1_000_000
    x, y = array("i", range(n)), array("i", range(0, -n, -1))

    with remora.open(uri) as device:
        print(device.name, *device.targets)
        add = device.load(samples.load("vector"))["add_i32"]  # the artifact that fits this processor best

        a, b = device.upload(x), device.upload(y)  # anything with the buffer protocol, or DLPack
        out = device.allocate(a.size)
        done = device.queue.dispatch(add, add.grid_for(n), [a, b, out], (n,))  # returns at once
        done.wait(timeout=10)

        with out.map(remora.Access.READ) as mapping:  # the device's memory itself, if it is on this machine
            result = mapping.view.cast("i")
            assert not any(result), "x + y is 0 everywhere"
            result.release()
        print(f"added {n:,} numbers, exactly")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
