"""Fuzz the decoders and the session: `python -m tests.fuzz.run --target all --seconds 60 --seed 1`.

Inputs are golden frames and `corpus/` files changed at random by a seeded generator, so a run can be repeated. An input may end in
PeerError and in nothing else, must take less than a second, and must not make the process allocate more than MAX_PEAK bytes. One
that breaks a rule is written to `corpus/<target>-<digest>.bin`, where every later run and the test suite start from it. `--collect`
fills the corpus with small inputs that are refused for different reasons. `--inputs N` is the long run, see long.py.
"""

import argparse
import hashlib
import itertools
import random
import re
import struct
import sys
import time
import tracemalloc
from pathlib import Path

from tests.fuzz.targets import TARGETS

from remora.errors import PeerError

CORPUS = Path(__file__).parent / "corpus"
#: Bytes that one input may make a decoder allocate: a few frames, whatever the counts in it say.
MAX_PEAK = 4 << 20
MAX_SECONDS = 1.0
#: Numbers at which counts, sizes and offsets break.
EDGES = (
    0,
    1,
    7,
    8,
    16,
    17,
    64,
    65,
    0x7F,
    0x80,
    0xFF,
    0x1000,
    0xFFFF,
    1 << 16,
    1 << 20,
    (1 << 31) - 1,
    (1 << 32) - 1,
    (1 << 64) - 1,
)
LEAST = 100
MEASURED = 64
"""One input in so many is run under tracemalloc, which is slow."""


def change(data: bytearray, dice: random.Random, others: list[bytes]) -> None:
    """One random change, in place."""
    size = len(data)
    at = dice.randrange(size + 1)
    match dice.randrange(8):
        case 0 if size:
            data[at % size] ^= 1 << dice.randrange(8)
        case 1 if size:
            data[at % size] = dice.randrange(256)
        case 2:
            del data[at : at + dice.randrange(1, 33)]
        case 3:
            data[at:at] = dice.randbytes(dice.randrange(1, 33))
        case 4:
            code = dice.choice(["<B", "<H", "<I", "<Q"])
            width = struct.calcsize(code)
            data[at : at + width] = struct.pack(code, dice.choice(EDGES) & ((1 << 8 * width) - 1))
        case 5:
            other = dice.choice(others)
            data[at:] = other[dice.randrange(len(other) + 1) :]
        case 6 if size >= 4:
            struct.pack_into("<I", data, 0, size + 7 & ~7)
            data += bytes(-size % 8)
        case _:
            data += data[at : at + 64]


def inputs(name: str, seed: int):
    """The corpus of a target, then changed inputs without end."""
    dice = random.Random(f"{name} {seed}")
    known = TARGETS[name].seeds + [file.read_bytes() for file in sorted(CORPUS.glob(f"{name}-*.bin"))]
    yield from known
    while True:
        data = bytearray(dice.choice(known))
        for _ in range(dice.choice((1, 1, 2, 4, 8))):
            change(data, dice, known)
        yield bytes(data[: 1 << 17])


def try_one(name: str, data: bytes, *, measured: bool = False) -> bool:
    """Run one input; whether it was taken. Raises whatever is not PeerError, and AssertionError for too much time or memory."""
    taken = False
    if measured:
        tracemalloc.start()
    start = time.process_time()
    try:
        TARGETS[name].run(data)
        taken = True
    except PeerError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        if measured:
            tracemalloc.stop()
    seconds = time.process_time() - start
    assert peak <= MAX_PEAK, f"{peak} bytes were allocated for an input of {len(data)}"
    assert measured or seconds <= MAX_SECONDS, f"an input of {len(data)} bytes took {seconds:.1f} s"
    return taken


def fuzz(name: str, seconds: float, seed: int) -> int:
    """Run a target for so long, but at least its seeds and LEAST changed inputs; returns how many.

    A bad input is kept in the corpus and its error raised.
    """
    until = time.monotonic() + seconds
    for count, data in enumerate(inputs(name, seed)):
        if time.monotonic() > until and count >= len(TARGETS[name].seeds) + LEAST:
            return count
        try:
            try_one(name, data, measured=count % MEASURED == 0)
        except Exception:
            keep(name, data)
            raise
    raise AssertionError("inputs never end")


def keep(name: str, data: bytes) -> None:
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin").write_bytes(data)


def collect(name: str, seed: int, most: int = 6) -> int:
    """Keep the first input for each of the reasons to refuse one, at most so many; the number kept."""
    reasons = set()
    for data in itertools.islice(inputs(name, seed), 5000):
        try:
            TARGETS[name].run(data)
        except PeerError as error:
            reason = re.sub(r"[0-9a-fx]*[0-9][0-9a-fx]*|b'.*|'.*'", "", error.message)
            if len(data) <= 256 and reason not in reasons and len(reasons) < most:
                reasons.add(reason)
                keep(name, data)
    return len(reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="all", choices=["all", *TARGETS])
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, shared by the targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--collect", action="store_true", help="fill the corpus instead")
    parser.add_argument("--inputs", type=int, default=0, help="so many in all instead of a time, counted and watched for growth")
    parser.add_argument("--record", default="", metavar="FILE", help="with --inputs: write what was done to a JSON file")
    options = parser.parse_args()
    names = list(TARGETS) if options.target == "all" else [options.target]
    if options.inputs:
        from tests.fuzz import long

        return long.main(options.inputs, options.seed, names, options.record)
    for name in names:
        if options.collect:
            print(f"{name:16} {collect(name, options.seed):9} inputs kept")
            continue
        count = fuzz(name, options.seconds / len(names), options.seed)
        print(f"{name:16} {count:9} inputs, all well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
