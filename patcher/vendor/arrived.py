"""What has arrived from a source, and what is asked of every source.

It may be hostile: no link in it is followed, no path may lead out of it, and there are limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patcher.core.problem import Problem

ENTRIES = 20_000  # files and folders
SCRIPT = 4 << 20  # bytes of one file that is wanted
UNPACKED = 256 << 20  # bytes of a whole archive

Wanted = Callable[[str], bool]  # whether the content of a file of this path is asked for


@dataclass(frozen=True)
class Arrived:
    """What a source holds.  Paths are POSIX, relative to the source or to the one folder that holds all of an archive.

    `origin` is the source in words that may be shown, `repository` its URL where it has one; `commit` is its full
    name and `date` its day, both empty where they are not known.  An archive's commit is what it says of itself.
    """

    kind: str  # folder, git or archive
    origin: str
    files: Mapping[str, bytes]  # what was wanted
    paths: Sequence[str]  # everything that is a file
    repository: str = ""
    commit: str = ""
    date: str = ""
    notes: Sequence[str] = field(default=())


def limited(content: bytes, what: str) -> bytes:
    if len(content) > SCRIPT:
        raise unreadable(what, f"larger than {SCRIPT >> 20} MiB")
    return content


def unreadable(what: str, why: str, hint: str = "Nothing was written.") -> Problem:
    return Problem(why, file=what, hint=hint, code=2)


def refuse_link(source: Path, name: str, wanted: Wanted) -> None:
    if wanted(name):
        raise unreadable(str(source), f"{name} is a link, and links are not followed")
