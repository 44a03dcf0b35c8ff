"""What a probe of `remora doctor` finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["STATES", "Finding", "as_json", "from_json"]

#: Works; is a fact; is not there, and need not be; works less well than it could; is there and does not work.
STATES = ("ok", "fact", "absent", "limit", "broken")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: its area and name, one of STATES, what was seen, and the command that mends it (empty when nothing has to be)."""

    area: str
    name: str
    state: str
    told: str
    mend: str = ""


def as_json(finding: Finding) -> dict[str, str]:
    """For the pipe between a probe and the doctor, and for `--json`."""
    return asdict(finding)


def from_json(value: Any) -> Finding:
    """The other way. Raises TypeError or ValueError when a probe printed something else."""
    finding = Finding(**{str(key): str(each) for key, each in dict(value).items()})
    if finding.state not in STATES:
        raise ValueError(f"{finding.state!r} is no state")
    return finding
