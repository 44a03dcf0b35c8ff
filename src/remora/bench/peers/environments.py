"""Peers' own Python environments: a venv each under a cache folder, filled by pip from the registries it is set up for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from remora.bench.peers.table import PEERS, Contestant
from remora.errors import BrokenError

__all__ = ["command", "default_folder", "install", "installed", "installed_peers", "program_path", "python_of"]

#: Overrides the cache folder.
FOLDER_VARIABLE = "REMORA_PEERS"
#: Seconds that one peer's installation may take.
INSTALL_TIMEOUT = 1200.0
#: Written last: a venv without it is half made. Holds what was asked for and what pip chose.
RECORD = "remora.json"
#: Lines of pip's output that an error shows.
TAIL_LINES = 4


def default_folder() -> Path:
    """$REMORA_PEERS, or remora/peers in the user's cache folder."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remora" / "peers"


def python_of(folder: Path, peer: Contestant) -> Path:
    """The Python that runs the program: its venv's, or this one where nothing has to be installed."""
    return folder / peer.name / "bin" / "python" if peer.requirements else Path(sys.executable)


def program_path(peer: Contestant) -> Path:
    """The program's file."""
    return Path(__file__).parent / "programs" / f"{peer.program}.py"


def command(folder: Path, peer: Contestant) -> list[str]:
    """What to run."""
    python = python_of(folder, peer)
    launcher = [str(python.parent / peer.launcher[0]), *peer.launcher[1:]] if peer.launcher else []
    return [*launcher, str(python), str(program_path(peer)), *peer.words, *(["alone"] if peer.alone else [])]


def installed(folder: Path, peer: Contestant) -> bool:
    """Whether it is there with the versions that the table asks for."""
    if not peer.requirements:
        return True
    try:
        record = json.loads((folder / peer.name / RECORD).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("requirements") == list(peer.requirements)


def install(folder: Path, names: Sequence[Contestant], tell: Callable[[str], None]) -> list[str]:
    """Make the venvs that are not there; one line to `tell` for each peer. Returns the names of those that could not be made."""
    failed = []
    for peer in names:
        if installed(folder, peer):
            tell(f"{peer.name}: is there")
            continue
        tell(f"{peer.name}: installing {' '.join(peer.requirements)}")
        begin = monotonic()
        try:
            _make(folder / peer.name, peer)
        except BrokenError as error:
            failed.append(peer.name)
            tell(f"{peer.name}: not installed, and left out of comparisons. {error}")
        else:
            tell(f"{peer.name}: ready after {monotonic() - begin:.0f} s")
    return failed


def _make(place: Path, peer: Contestant) -> None:
    """A fresh venv. Raises BrokenError with the end of what was said; then nothing of it is left."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(place)])
        pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        _run([*pip, "install", "--quiet", *peer.requirements])
        versions = _run([*pip, "freeze"]).splitlines()
        record = {"requirements": list(peer.requirements), "versions": versions}
        (place / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, OSError):
            raise BrokenError(f"{place}: {error.strerror}; choose another folder with --peers-folder") from error
        raise


def _run(words: list[str]) -> str:
    """Run to the end; its output. Raises BrokenError when it fails or takes too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_TIMEOUT, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise BrokenError(f"{words[0]} took longer than {INSTALL_TIMEOUT:g} s; is the package registry reachable?") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).strip().splitlines()[-TAIL_LINES:])
        raise BrokenError(f"pip or venv failed: {said}")
    return done.stdout


def installed_peers(folder: Path) -> tuple[Contestant, ...]:
    """The peers of the table that are there."""
    return tuple(peer for peer in PEERS if installed(folder, peer))
