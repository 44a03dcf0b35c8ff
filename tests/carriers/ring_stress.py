"""Both ends of a ring under stress, each in a process of its own: they stop at random moments, and arm and sleep at random moments.

Run as a program it is the other end: `ring_stress.py OFFER DESCRIPTORS read|write MESSAGES`. It imports little, to begin at once.
"""

import os
import select
import struct
import sys
import time
from random import Random

from remora.carriers.shm.region import take_region
from remora.carriers.shm.ring import RingReader, RingWriter

#: Seconds after which a signal that was promised counts as lost.
LONG = 30.0
#: Byte n of a stream is CYCLE[n % PRIME].
PRIME = 65521
CYCLE = bytes((n * 31 + (n >> 8)) & 0xFF for n in range(PRIME)) * 2
HEADER = struct.Struct("<IH")


def part(start, size):
    """Bytes `start` to `start + size` of the stream that every test sends."""
    return CYCLE[start % PRIME : start % PRIME + size]


def pause(random):
    """Now and then a moment off: so short that the other end is in the middle of something, or longer than it takes to sleep."""
    drawn = random.random()
    if drawn < 0.01:
        time.sleep(random.choice((0, 20e-6, 200e-6)))
    elif drawn < 0.03:
        os.sched_yield()
    elif drawn < 0.2:
        until = time.perf_counter_ns() + random.randrange(6000)
        while time.perf_counter_ns() < until:
            pass


def write(ring, messages, seed):
    """Write messages of random sizes, a number in front of each; returns how many bytes went, and how often this end slept."""
    writer, random, start, slept = RingWriter(ring), Random(seed), 0, 0
    for number in range(messages):
        size = random.randrange(1, 256)
        rest = HEADER.pack(number, size) + part(start, size)
        start += size
        while rest:
            rest = rest[writer.put([rest]) :]
            pause(random)
            if rest and writer.full():
                slept += 1
                assert select.select([ring.room_event], [], [], LONG)[0], "a wakeup was lost"
    return start, slept


def read(ring, messages, seed):
    """Read and check what `write` writes."""
    reader, random, start, slept = RingReader(ring), Random(seed), 0, 0
    room, have, bell = bytearray(1 << 12), 0, select.epoll()
    bell.register(ring.data_event, select.EPOLLIN | select.EPOLLET)
    number = 0
    while number < messages:
        got = reader.take(memoryview(room)[have : have + random.randrange(1, 2000)])
        if not got:
            if (random.random() > 0.2 or not reader.look(time.perf_counter_ns() + 20_000)) and reader.arm():
                slept += 1
                assert bell.poll(LONG), "a wakeup was lost"
            continue
        have += got
        at = 0
        while have - at >= HEADER.size:
            name, size = HEADER.unpack_from(room, at)
            end = at + HEADER.size + size
            if end > have:
                break
            assert name == number
            assert room[at + HEADER.size : end] == part(start, size)
            start, number, at = start + size, number + 1, end
        room[: have - at] = room[at:have]
        have -= at
        pause(random)
    bell.close()
    return start, slept


def main(offer, fds, what, messages):
    region = take_region(bytes.fromhex(offer), [int(text) for text in fds.split(",")])
    print("ready", flush=True)
    print(*(read(region.to_taker, int(messages), 2) if what == "read" else write(region.to_maker, int(messages), 2)), flush=True)
    region.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
