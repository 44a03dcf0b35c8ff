"""`remora doctor`: what is installed, what works, what does not and why, and the command that mends each.

Nothing is loaded here: each probe runs in a child process with a deadline, because a vendor's library may crash or hang.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from rich.text import Text

from remora.cli.finding import Finding, as_json, from_json
from remora.cli.probes import names
from remora.cli.show import CONSOLE, waiting

__all__ = ["add_arguments", "examine", "run"]

DEADLINE = 20.0
#: Probes that run at once.
BESIDE = 4
STYLES = {"ok": "green", "fact": "", "absent": "dim", "limit": "yellow", "broken": "red"}
AREAS = {"driver": "drivers", "library": "libraries"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora doctor`."""
    parser.add_argument("--json", action="store_true", help="print JSON: a list of findings")
    parser.add_argument("--deadline", type=float, default=DEADLINE, metavar="S", help="seconds that a probe may take (%(default)g)")


def run(args: argparse.Namespace) -> int:
    """Probe everything. 1 when something that is installed does not work, else 0."""
    with waiting("looking around"), ThreadPoolExecutor(BESIDE) as pool:
        findings = [finding for found in pool.map(lambda name: examine(name, args.deadline), names()) for finding in found]
    if args.json:
        print(json.dumps([as_json(finding) for finding in findings], indent=2))
    else:
        show(findings)
    return 1 if any(finding.state == "broken" for finding in findings) else 0


def examine(name: str, deadline: float) -> list[Finding]:
    """The findings of one probe in a child process; what kills or delays it is a finding too."""
    kind, _, which = name.partition(":")
    area, subject = AREAS.get(kind, kind), which or kind
    command = [sys.executable, "-m", "remora.cli.probes", name]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        answer, noise = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        end(child)
        return [Finding(area, subject, "broken", f"did not answer within {deadline:g} s and was ended", again(name))]
    last = (noise.decode(errors="replace").strip().splitlines() or [""])[-1]
    if child.returncode < 0:
        told = f"loading it crashed the probe with {signal_name(-child.returncode)}. {last}".strip()
        return [Finding(area, subject, "broken", told, again(name))]
    try:
        return [from_json(each) for each in json.loads(answer)]
    except (ValueError, TypeError):
        return [Finding(area, subject, "broken", f"the probe ended with {child.returncode}: {last}", again(name))]


def again(name: str) -> str:
    """The command that shows what went wrong."""
    return f"{sys.executable} -X faulthandler -m remora.cli.probes {name}   # shows where; reinstall what it names"


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill the probe and what it started, and reap it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def show(findings: Iterable[Finding]) -> None:
    """Print them by area, each with the command that mends it below."""
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            CONSOLE.print(Text(area, style="bold"))
        parts = ("  ", finding.state.ljust(7), " ", (finding.name.ljust(20), "bold"), finding.told)
        CONSOLE.print(Text.assemble(*parts, style=STYLES[finding.state]), soft_wrap=True)
        if finding.mend:
            CONSOLE.print(
                Text(f"          -> {finding.mend}", style="bold" if finding.state in {"limit", "broken"} else "dim"),
                soft_wrap=True,
            )
