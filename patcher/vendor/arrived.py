"""What has arrived from a source, and what is asked of every source.

It may be hostile: no link in it is followed, no path may lead out of it, and there are limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from patcher.core.problem import Problem

ENTRIES = 20_000  # files and folders
SCRIPT = 4 << 20  # bytes of one file that is wanted
UNPACKED = 256 << 20  # bytes of a whole archive

Wanted = Callable[[str], bool]  # whether the content of a file of this path is asked for


@dataclass(frozen=True)
class Arrived:
    """What a source holds.  Paths are POSIX, relative to the source.

    `origin` is the source in words that may be shown, `repository` its URL if it has one.  `commit`
    is its full name and `date` its day, both empty if unknown.  An archive states its own commit.
    """

    kind: str  # folder, git or archive
    origin: str
    files: Mapping[str, bytes]  # what was wanted
    paths: Sequence[str]  # every file, sorted
    repository: str = ""
    commit: str = ""
    date: str = ""
    notes: Sequence[str] = ()


class Arriving:
    """Collects the files of a source.  Its methods raise Problem at what is not taken."""

    def __init__(self, source: str, wanted: Wanted) -> None:
        self.source, self.wanted = source, wanted
        self.files: dict[str, bytes] = {}
        self.paths: set[str] = set()
        self.entries = 0

    def count(self, entries: int = 1) -> None:
        """Call this for every file and folder, before it is read."""
        self.entries += entries
        if self.entries > ENTRIES:
            hint = "Give the folder that holds the scripts."
            raise self.refusal(f"more than {ENTRIES} files", hint)

    def add(self, name: str, opened: Callable[[], IO[bytes] | None], size: int = 0) -> None:
        """Add a file, read if it is wanted.  `size`, in bytes, is what the source states of it."""
        if self.wanted(name):
            content = b""
            if size <= SCRIPT and (file := opened()):
                with file:
                    content = file.read(SCRIPT + 1)
            if max(size, len(content)) > SCRIPT:
                raise self.refusal(f"{name}: larger than {SCRIPT >> 20} MiB")
            if name in self.files:
                raise self.refusal(f"{name} is in it twice")
            self.files[name] = content
        self.paths.add(name)

    def pass_link(self, name: str) -> None:
        if self.wanted(name):
            raise self.refusal(f"{name} is a link, and links are not followed")

    def refusal(self, why: str, hint: str = "Nothing was written.") -> Problem:
        return Problem(why, file=self.source, hint=hint, code=2)
