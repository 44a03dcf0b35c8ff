"""The files that a server offers, by logical names (H23): `--file NAME=PATH` and `--file-rw NAME=PATH`.

A name is a file, or a directory and then everything beneath it. The longest name that a request begins with decides, compared
component by component: `data` says nothing about `database`. What is under no name is refused like what is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from remora.errors import Status, UsageError

__all__ = ["FileGrant", "FileGrants", "parse_grant", "split_name"]

Components: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileGrant:
    """A file or directory of the server that clients may open under a name."""

    name: str
    path: str
    writable: bool = False


def split_name(name: str) -> Components:
    """The components of a logical name: relative, `/` between them, none of them empty, `.` or `..`. Raises UsageError."""
    components = tuple(name.split("/"))
    if "\0" in name or any(component in ("", ".", "..") for component in components):
        raise UsageError(
            f"{name!r} is no name of a file on a server: components with one / between them, none empty, '.' or '..'",
            code=Status.PERMISSION_DENIED,
        )
    return components


def parse_grant(text: str, *, writable: bool) -> FileGrant:
    """What `NAME=PATH` says. The path is made absolute. Raises UsageError."""
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise UsageError(f"{text!r}: give NAME=PATH, such as weights=/data/weights")
    split_name(name)
    return FileGrant(name, os.path.abspath(path), writable)  # noqa: PTH100  (a Path would follow symlinks or keep `..`)


class FileGrants:
    """What a server offers, for look-ups. Immutable."""

    def __init__(self, grants: Iterable[FileGrant]) -> None:
        self._grants: dict[Components, FileGrant] = {}
        for grant in grants:
            components = split_name(grant.name)
            if components in self._grants:
                raise UsageError(f"the file name {grant.name!r} is given twice; give each once", code=Status.ALREADY_EXISTS)
            self._grants[components] = grant

    def find(self, name: str) -> tuple[FileGrant, Components] | None:
        """The grant with the longest name that this one begins with, and the rest of the name; None when there is none."""
        try:
            wanted = split_name(name)
        except UsageError:
            return None
        for length in range(len(wanted), 0, -1):
            grant = self._grants.get(wanted[:length])
            if grant is not None:
                return grant, wanted[length:]
        return None

    def check(self) -> None:
        """Raise UsageError unless everything offered is a file or directory here, so that a typing error shows at once."""
        for grant in self._grants.values():
            if not os.path.isfile(grant.path) and not os.path.isdir(grant.path):  # noqa: PTH112, PTH113
                raise UsageError(f"--file {grant.name}={grant.path}: there is no such file or directory", code=Status.NOT_FOUND)
