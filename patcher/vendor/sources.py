"""Where another upstream comes from: a folder, a git repository or an archive."""

from __future__ import annotations

import os
import re
from pathlib import Path

from patcher.core.problem import UsageError
from patcher.vendor import archive, git
from patcher.vendor.arrived import (
    ENTRIES,
    SCRIPT,
    Arrived,
    Wanted,
    limited,
    refuse_link,
    unreadable,
)


def fetch(source: str, wanted: Wanted, rev: str | None = None, timeout: float = 120) -> Arrived:
    """Read the files that are `wanted` from `source`; a git repository is read at `rev`, or at its HEAD.

    Raises Problem with code 2 where that is not possible, or took longer than `timeout` seconds.
    """
    path = Path(source)
    if not path.exists() and git.is_url(source):
        if re.match(r"https?://.*\.(zip|tar|tgz|tar\.\w+)$", source):
            raise UsageError(f"{source}: an archive is read from a file: download it first")
        return git.commit_of(source, wanted, rev, timeout)
    if path.is_dir() and git.is_repository(path):
        return git.commit_of(source, wanted, rev, timeout)
    if rev is not None:
        raise UsageError(f"--rev {rev}: {source} is not a git repository")
    try:
        if path.is_dir():
            return _folder(path, wanted)
        if path.is_file():
            return archive.read(path, wanted)
    except OSError as error:
        raise unreadable(source, error.strerror or str(error)) from None
    raise UsageError(f"{source}: there is no such folder, repository or archive")


def _folder(folder: Path, wanted: Wanted) -> Arrived:
    files, paths, seen = {}, [], 0
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        seen += len(folders) + len(names)
        if seen > ENTRIES:
            raise unreadable(
                str(folder), f"more than {ENTRIES} files", "Give the folder that holds the scripts."
            )
        for name in sorted(names):
            path = Path(place, name)
            inside = path.relative_to(folder).as_posix()
            if path.is_symlink():
                refuse_link(folder, inside, wanted)
            elif path.is_file():
                paths.append(inside)
                if wanted(inside):
                    with path.open("rb") as file:
                        files[inside] = limited(file.read(SCRIPT + 1), f"{folder}: {inside}")
    return Arrived("folder", folder.as_posix(), files, paths)


def _raise(error: OSError) -> None:
    raise error  # `os.walk` would leave out what it may not read
