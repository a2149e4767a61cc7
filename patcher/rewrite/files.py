"""Which files a `rewrite` is about: named ones, those in folders, those that a pattern finds."""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.core.problem import UsageError

STDIN = "-"
SECONDS = 60  # that git may take to list a folder
NO_WORK_TREE = (
    "fatal: not a git repository (or any ",
    "fatal: this operation must be run in a work tree",
)
# A file system monitor is a program that the repository names, and the repository is not ours.
LIST = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py")
GIT = ("git", "-c", "core.fsmonitor=false")
# A hook inherits GIT_DIR and others, which name the hook's repository, whatever the folder.
KEPT = ("GIT_CONFIG", "GIT_CEILING", "GIT_DISCOVERY")
WITHOUT_GIT = "Files that are named, or found by a pattern as '**/train*.py', need no git."


class File(NamedTuple):
    """A file by the path that it is called by; `named` itself, or found in a folder."""

    path: str
    named: bool
    real: str


def find(paths: Sequence[str], exclude: Sequence[str] = ()) -> list[File]:
    """Every file once, those of a folder sorted by name.

    Raises UsageError if a path leads to nothing, or if nobody knows which files git ignores there.
    """
    found: dict[str, File] = {}
    for given in paths:
        for path, named in _at(given):
            if not excluded(path, exclude):
                real = os.path.realpath(path) if path != STDIN else STDIN
                if real not in found or (named and not found[real].named):
                    found[real] = File(path, named, real)
    return list(found.values())


def base(files: Sequence[File]) -> str:
    """The folder in which `git apply` and `patch -p1` shall take the diff of all `files`.

    The working directory if it holds them all, or the top of their repository; the top first, for
    absolute paths from outside of it.  Else the innermost folder that holds them all.
    """
    real = [file.real for file in files if file.path != STDIN]
    here = os.path.realpath(".")
    if not real:
        return here
    top = _repository(real[0]) or here
    relative = not any(os.path.isabs(file.path) for file in files)
    for folder in (here, top) if relative or _below(here, top) else (top, here):
        if all(_below(path, folder) for path in real):
            return folder
    try:
        return os.path.commonpath([os.path.dirname(path) for path in real])
    except ValueError:  # on two drives of Windows
        return ""


def excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches the path as it is called, a folder of it, or the name alone."""
    above = [part.as_posix() for part in (Path(path), *Path(path).parents)]
    above += [part.rpartition("/")[2] for part in above]
    return any(fnmatch.fnmatchcase(p, pattern.rstrip("/")) for pattern in patterns for p in above)


def _at(path: str) -> Iterator[tuple[str, bool]]:
    """Paths, and whether each was named itself."""
    if path == STDIN or os.path.isfile(path):
        yield path, True
    elif os.path.isdir(path):
        for name in sorted(_in_folder(path)):
            yield os.path.join(path, name) if path != "." else name, False
    elif os.path.lexists(path):
        raise UsageError(f"{path}: neither a file nor a folder")
    elif matches := sorted(glob.glob(path, recursive=True)):
        for match in matches:
            yield from _at(match)
    else:
        raise UsageError(f"{path}: there is no such file or folder")


def _in_folder(folder: str) -> list[str]:
    """The Python files below a folder, relative to it, without those that git ignores."""
    names = _by_git(folder)
    if names is None:
        names = list(_by_walk(folder))
    return [name for name in names if not _in_environment(folder, os.path.dirname(name))]


def _by_git(folder: str) -> list[str] | None:
    """What git lists there; None if that is no work tree.

    Raises UsageError if git is missing or refuses.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(KEPT)}
    env["LC_ALL"] = "C"
    command = [*GIT, "-C", folder, *LIST]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=env)
    except subprocess.TimeoutExpired:
        raise _unknown(folder, f"git took more than {SECONDS} seconds") from None
    except OSError:
        if _repository(os.path.realpath(folder)) is None:
            return None
        raise _unknown(folder, "git is not installed", "Install git.") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace")
        if any(words in said for words in NO_WORK_TREE):
            return None
        why, _, advice = said.rpartition("fatal: ")[2].partition("\n")
        raise _unknown(folder, f"git says: {why}", " ".join(advice.split()))
    names = dict.fromkeys(os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
    return [name for name in names if os.path.isfile(os.path.join(folder, name))]


def _unknown(folder: str, why: str, advice: str = "") -> UsageError:
    message = f"nothing is rewritten, because it is not known what git ignores here: {why}"
    hint = f"{advice}\n{WITHOUT_GIT}".strip()
    return UsageError(message, file=os.path.normpath(folder), hint=hint)


def _by_walk(folder: str) -> Iterator[str]:
    for at, folders, names in os.walk(folder):
        below = at != folder and os.path.lexists(os.path.join(at, ".git"))
        listed = _by_git(at) if below else None  # a repository in a folder that is none
        if listed is not None:
            folders.clear()
        else:
            skipped = ("__pycache__", "node_modules")
            folders[:] = [n for n in folders if n[0] != "." and n not in skipped]
            python = [name for name in names if name.endswith(".py")]
            listed = [name for name in python if os.path.isfile(os.path.join(at, name))]
        yield from (os.path.relpath(os.path.join(at, name), folder) for name in listed)


def _repository(path: str) -> str | None:
    """The nearest folder at or above `path` that has a `.git`."""
    while not os.path.lexists(os.path.join(path, ".git")):
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above
    return path


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


@functools.cache
def _in_environment(root: str, folder: str) -> bool:
    """Whether a folder below `root` is in a virtual environment, which nobody edits."""
    if not folder:
        return False
    if os.path.lexists(os.path.join(root, folder, "pyvenv.cfg")):
        return True
    return _in_environment(root, os.path.dirname(folder))
