"""MPI: two ranks of one job. Rank 0 is the client; rank 1 does what it is told by a message of four numbers."""

from __future__ import annotations

import os
import sys
from typing import Any

import speak

with speak.importing():
    from mpi4py import MPI

SMALL, PIPELINE, STORE, LOAD, ADD, END = range(6)
MEMORY, LEFT, RIGHT, SUM = range(4)
#: Bytes of one message; a count of MPI is 31 bits.
PIECE = 64 * speak.MIB


def send(world: Any, memory: memoryview, other: int) -> None:
    """All bytes, a piece at a time."""
    for begin in range(0, len(memory), PIECE):
        world.Send([memory[begin : begin + PIECE], MPI.BYTE], other)


def receive(world: Any, memory: memoryview, other: int) -> None:
    """All bytes into memory that is there."""
    for begin in range(0, len(memory), PIECE):
        world.Recv([memory[begin : begin + PIECE], MPI.BYTE], other)


class Client(speak.Work):
    """Rank 0."""

    def __init__(self) -> None:
        import array

        self._world = MPI.COMM_WORLD
        self._order = array.array("q", [0] * 3)
        self._word = bytearray(8)
        self._memory = memoryview(bytearray())
        self._sum = memoryview(bytearray(speak.ARRAY_BYTES))
        self.server_pids = [self._world.recv(source=1)]

    def _tell(self, verb: int, name: int = 0, number: int = 0) -> None:
        self._order[0], self._order[1], self._order[2] = verb, name, number
        self._world.Send([self._order, MPI.INT64_T], 1)

    def _done(self) -> None:
        self._world.Recv([self._word, MPI.BYTE], 1)

    def small(self) -> None:
        self._tell(SMALL)
        self._done()

    def pipeline(self, count: int) -> None:
        self._tell(PIPELINE, 0, count)
        for _ in range(count):
            self._world.Send([self._word, MPI.BYTE], 1)
        self._done()

    def prepare(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))

    def upload(self) -> None:
        self._put(MEMORY, self._memory)

    def download(self) -> None:
        self._get(MEMORY, self._memory)

    def _put(self, name: int, memory: memoryview) -> None:
        self._tell(STORE, name, len(memory))
        send(self._world, memory, 1)
        self._done()

    def _get(self, name: int, memory: memoryview) -> None:
        self._tell(LOAD, name)
        receive(self._world, memory, 1)

    def whole(self, left: memoryview, right: memoryview) -> Any:
        self._put(LEFT, left)
        self._put(RIGHT, right)
        self._tell(ADD)
        self._done()
        self._get(SUM, self._sum)
        return self._sum

    def close(self) -> None:
        self._tell(END)


def serve() -> None:
    """Rank 1."""
    import array

    import numpy as np

    world, order, word = MPI.COMM_WORLD, array.array("q", [0] * 3), bytearray(8)
    world.send(os.getpid(), dest=0)
    blocks: dict[int, memoryview] = {}
    while True:
        world.Recv([order, MPI.INT64_T], 0)
        verb, name, number = order
        match verb:
            case 1:  # PIPELINE
                for _ in range(number):
                    world.Recv([word, MPI.BYTE], 0)
            case 2:  # STORE
                if name not in blocks or len(blocks[name]) != number:
                    blocks[name] = memoryview(bytearray(number))
                receive(world, blocks[name], 0)
            case 3:  # LOAD
                send(world, blocks[name], 0)
                continue
            case 4:  # ADD
                left, right = (np.frombuffer(blocks[index], "f4") for index in (LEFT, RIGHT))
                if SUM not in blocks:
                    blocks[SUM] = memoryview(bytearray(left.nbytes))
                np.add(left, right, out=np.frombuffer(blocks[SUM], "f4"))
            case 5:  # END
                return
        world.Send([word, MPI.BYTE], 0)


if __name__ == "__main__":
    if MPI.COMM_WORLD.Get_rank():
        speak.die_with_parent()
        serve()
    else:
        speak.client(Client)
        sys.stdin.close()
