"""A program that kills itself, as by `kill -9`, when it comes to a certain call; the first process that gets there, and no other.

    deadly.py FUSE TARGET NTH client URI SIZE   does the job of job.py
    deadly.py FUSE TARGET NTH server ARGUMENTS  python -m remora.server

TARGET is `module:name.of.a.function`; the call is the NTH of its process. FUSE is a file that goes with the one who dies.
"""

import itertools
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

SCRIPT = str(Path(__file__))


def arm(fuse, target, nth):
    module, _, path = target.partition(":")
    owner = import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    calls = itertools.count(1)

    def deadly(*args, **options):
        if next(calls) == nth and os.path.exists(fuse):  # noqa: PTH110 - nothing is imported on the way to death
            os.unlink(fuse)  # noqa: PTH108
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **options)

    setattr(owner, name, deadly)


def main(fuse, target, nth, role, *words):
    if role == "server":
        from remora.server.__main__ import main as serve

        arm(fuse, target, int(nth))
        return serve(list(words))
    from job import job  # it lies beside this script

    from remora.errors import Error

    arm(fuse, target, int(nth))
    try:
        job(words[0], int(words[1]))
    except Error as error:
        print("ended", type(error).__name__, error, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
