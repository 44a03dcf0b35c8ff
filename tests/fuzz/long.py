"""A recorded run of many inputs over every target: `python -m tests.fuzz --inputs 10000000 --seed 7 --record fuzz.json`.

Each target gets its share, which is counted and not timed. A bad input is kept in the corpus and ends its target; the others go on.
After a tenth of its inputs a target may not make the process grow any more.
"""

import faulthandler
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.run import inputs, keep, try_one
from tests.fuzz.targets import TARGETS

#: One input in so many is run under tracemalloc, which itself keeps some memory each time that it is started.
MEASURED = 4096
#: Bytes by which the process may grow during the last nine tenths of a target.
MAX_GROWTH = 4 << 20
#: Seconds for a thousand inputs, after which the process shows where it hangs and exits.
HANG = 300.0
#: Seconds between two signs of progress.
PROGRESS = 10.0


class Result(NamedTuple):
    target: str
    inputs: int
    seconds: float
    growth_bytes: int
    finding: str


def resident_bytes():
    """Memory of this process that is not shared with files."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no Anonymous: line")


def run_target(name, count, seed, say=lambda _: None):
    """Run so many inputs of one target; returns a Result, whose finding is empty when all is well."""
    begin = told = time.monotonic()
    base = 0
    number, finding = 0, ""
    for number, data in enumerate(inputs(name, seed)):
        if number == count:
            break
        if number == count // 10:
            base = resident_bytes()
        try:
            try_one(name, data, measured=number % MEASURED == 0)
        except Exception as error:
            keep(name, data)
            finding = f"{type(error).__name__}: {error}"
            break
        if number % 1000 == 0:
            faulthandler.dump_traceback_later(HANG, exit=True)
            if time.monotonic() - told > PROGRESS:
                told = time.monotonic()
                say(f"{name}: {number:,} of {count:,}")
    faulthandler.cancel_dump_traceback_later()
    growth = resident_bytes() - base if base else 0
    if not finding and growth > MAX_GROWTH:
        finding = f"the process grew by {growth:,} bytes during {count - count // 10:,} inputs"
    return Result(name, number, time.monotonic() - begin, growth, finding)


def run_all(total, seed, names=tuple(TARGETS), say=print):
    """Run all targets, `total` inputs together; returns their Results."""
    results = []
    share = -(-total // len(names))
    for name in names:
        result = run_target(name, share, seed, say)
        results.append(result)
        story = f"{result.inputs:9,} inputs in {result.seconds:6.1f} s, {result.growth_bytes:+,} bytes"
        say(f"{name:18} {story}  {result.finding or 'well'}")
    return results


def record(path, seed, results, begun):
    """Write what a run did: when, where, with which seed, and every target's count and finding."""
    facts = {
        "date": begun,
        "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "seed": seed,
        "inputs": sum(result.inputs for result in results),
        "findings": sum(bool(result.finding) for result in results),
        "targets": [result._asdict() for result in results],
    }
    Path(path).write_text(json.dumps(facts, indent=1) + "\n")


def main(total, seed, names, path):
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    results = run_all(total, seed, names, say=lambda line: print(line, flush=True))
    if path:
        record(path, seed, results, begun)
    bad = [result for result in results if result.finding]
    print(f"{sum(result.inputs for result in results):,} inputs, {len(bad)} targets with a finding")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit("run it as `python -m tests.fuzz --inputs N`")
