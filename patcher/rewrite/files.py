"""Which files a `rewrite` is about: named ones, those in folders, and those that a pattern finds."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.problem import UsageError

STDIN = "-"
SECONDS = 60  # that git may take to list a folder


class File(NamedTuple):
    """A file by the path that it is called by, and whether it was named itself (or found in a folder)."""

    path: str
    named: bool


def find(paths: Sequence[str], exclude: Sequence[str] = ()) -> list[File]:
    """Every file once, those of a folder in order of their names.  Raises UsageError where a path leads to nothing."""
    found: dict[str, File] = {}
    for path in paths:
        for file in _at(path):
            if not excluded(file.path, exclude):
                key = os.path.realpath(file.path) if file.path != STDIN else STDIN
                if key not in found or (file.named and not found[key].named):
                    found[key] = file
    return list(found.values())


def excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches the path as it is called, one of its folders, or the name alone."""
    path = Path(path).as_posix()
    above = [path, *(p.as_posix() for p in Path(path).parents)]
    return any(
        fnmatch.fnmatchcase(a, p.rstrip("/")) or fnmatch.fnmatchcase(a.rpartition("/")[2], p.rstrip("/"))
        for p in patterns
        for a in above
    )


def _at(path: str) -> Iterator[File]:
    if path == STDIN:
        yield File(path, True)
    elif os.path.isdir(path):
        yield from (File(os.path.join(path, name) if path != "." else name, False) for name in sorted(_in_folder(path)))
    elif os.path.isfile(path):
        yield File(path, True)
    elif os.path.lexists(path):
        raise UsageError(f"{path}: neither a file nor a folder")
    elif matches := sorted(glob.glob(path, recursive=True)):
        for match in matches:
            yield from _at(match)
    else:
        raise UsageError(f"{path}: there is no such file or folder")


def _in_folder(folder: str) -> list[str]:
    """The Python files below a folder, relative to it: those that git does not ignore, or in no git tree all."""
    names = _by_git(folder)
    if names is None:
        names = list(_by_walk(folder))
    return [name for name in names if not _in_environment(folder, os.path.dirname(name))]


def _by_git(folder: str) -> list[str] | None:
    # A file system monitor is a program that the repository names, and the repository is not ours.
    git = ["git", "-c", "core.fsmonitor=false", "-C", folder, "ls-files", "-z"]
    try:
        done = subprocess.run(
            [*git, "--cached", "--others", "--exclude-standard", "--", "*.py"], capture_output=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    names = dict.fromkeys(os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
    return [name for name in names if os.path.isfile(os.path.join(folder, name))]


def _by_walk(folder: str) -> Iterator[str]:
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in ("__pycache__", "node_modules")]
        for name in names:
            path = os.path.join(at, name)
            if name.endswith(".py") and os.path.isfile(path):
                yield os.path.relpath(path, folder)


@functools.cache
def _in_environment(root: str, folder: str) -> bool:
    """Whether a folder below `root` belongs to a virtual environment: what is installed is not the user's to edit."""
    if not folder:
        return False
    if os.path.lexists(os.path.join(root, folder, "pyvenv.cfg")):
        return True
    return _in_environment(root, os.path.dirname(folder))
