"""Where another upstream comes from: a folder, a git repository or an archive."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import IO

from patcher.core.problem import Problem, UsageError
from patcher.vendor import archive, git
from patcher.vendor.arrived import Arrived, Arriving, Wanted


def fetch(source: str, wanted: Wanted, rev: str | None = None, timeout: float = 120) -> Arrived:
    """Read the files that are `wanted` from `source`; a git repository at `rev`, or at its HEAD.

    Raises Problem with code 2 if that is not possible, or took longer than `timeout` seconds.
    """
    path = Path(source)
    if path.is_dir() and git.is_repository(path):
        return git.commit_of(source, wanted, rev, timeout)
    if not path.exists() and git.is_url(source):
        if re.match(r"https?://.*\.(zip|tar|tgz|tar\.\w+)$", source):
            raise UsageError(f"{source}: an archive is read from a file: download it first")
        return git.commit_of(source, wanted, rev, timeout)
    if rev is not None:
        raise UsageError(f"--rev {rev}: {source} is not a git repository")
    try:
        if path.is_dir():
            return _folder(path, wanted)
        if path.is_file():
            return archive.read(path, wanted)
    except OSError as error:
        raise Problem(error.strerror or str(error), file=source, code=2) from None
    raise UsageError(f"{source}: there is no such folder, repository or archive")


def _folder(folder: Path, wanted: Wanted) -> Arrived:
    arriving = Arriving(str(folder), wanted)
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        arriving.count(len(folders) + len(names))
        for path in sorted(Path(place, name) for name in names):
            inside = path.relative_to(folder).as_posix()
            if path.is_symlink():
                arriving.pass_link(inside)
            elif path.is_file():
                arriving.add(inside, partial(_open, path))
    return Arrived("folder", folder.as_posix(), arriving.files, sorted(arriving.paths))


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _raise(error: OSError) -> None:
    raise error  # `os.walk` would leave out what it may not read
