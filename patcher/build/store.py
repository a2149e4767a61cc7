"""Put a set of files into a folder: all of them, or none.

The new files are written and synced beside the old ones first; what fails there has changed
nothing.  Then the old ones are hard-linked into `.patcher-undo`, and while that folder exists
the old state is the true one: a failed rename, or the next run after a kill, puts it back.
Renaming the folder away is the moment at which the new state becomes the true one.

A name may lead into a folder (`support/ranks.py`).  The folder is made when it is needed, and it
goes when the last file is taken out of it, unless something else is left there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from patcher.build.manifest import UNDO
from patcher.core.problem import Problem, Problems

Files = Mapping[str, bytes | None]  # by path in the folder; None: there is to be no such file

NEW, DROP = ".patcher-new", ".patcher-drop"
KEPT, ABSENT = "kept-", "absent-"
CACHE = "__pycache__"


def write(
    out: Path,
    files: Files | Callable[[], Files],
    modes: Mapping[str, int],
    refuse: Callable[[Path, Files], list[Problem]] | None = None,
    command: str = "apply",
) -> list[str]:
    """Make `out` hold `files`, in their order, and return the names of those that changed.

    `files` may be a function, which is called when `out` is locked and as a finished run has left
    it.  A file that is replaced keeps its mode; a new one gets that of `modes`, or what the umask
    says.  `refuse` is asked under the lock whether something stands in the way.  Raises Problem(s)
    with `out` as it was; `command` is what then to run again.
    """
    try:
        created = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
        try:
            with _locked(out):
                recover(out)
                files = files() if callable(files) else files
                problems = _in_the_way(out, files, command)
                if refuse and not problems:
                    problems = refuse(out, files)
                if problems:
                    raise Problems(problems)
                changes = {n: c for n, c in files.items() if _is_other(out / n, c)}
                if changes:
                    _replace(out, changes, modes)
                return list(changes)
        except BaseException:
            for folder in created:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
    except OSError as error:
        hint = f"{out} is as it was."
        if os.path.lexists(out / UNDO):
            hint = f"Run `{command}` again: it first puts back what was there."
        raise _unwritable(error, out, hint) from error


def _is_other(path: Path, content: bytes | None) -> bool:
    if path.is_symlink():
        return True
    try:
        return path.read_bytes() != content
    except FileNotFoundError:
        return content is not None


def repair(out: Path) -> None:
    """`recover` if there is need of it and no other run is at work.  Raises Problem if it fails."""
    try:
        if os.path.lexists(out / UNDO):
            with _locked(out):
                recover(out)
    except OSError as error:
        raise _unwritable(error, out) from error


def _unwritable(error: OSError, out: Path, hint: str = "") -> Problem:
    """A failure in a user's words: with the file that it is about, not one in our own folders."""
    path = Path(error.filename2 or error.filename or out)
    if path.parent.parent == out and path.parent.name in (NEW, DROP, UNDO):
        path = out / (unquote(path.name) if path.parent.name == NEW else _name_of(path))
    elif path.parent == out and path.name in (NEW, DROP, UNDO):
        path = out
    if error.errno == errno.EPERM:  # not a matter of modes
        hint = f"Is it immutable (`lsattr` tells), or another user's? {hint}".rstrip()
    return Problem(f"cannot write: {error.strerror}", file=path.as_posix(), hint=hint, code=2)


def recover(out: Path) -> None:
    """Put back what a killed or failed run had replaced, and drop what it left lying."""
    undo = out / UNDO
    if undo.is_dir():
        for saved in sorted(undo.iterdir(), reverse=True):  # a folder comes after what is in it
            path = out / _name_of(saved)
            if saved.name.startswith(KEPT):
                path.parent.mkdir(exist_ok=True)
                if not _is_same(saved, path):  # one that cannot be replaced has not been
                    os.replace(saved, path)
            elif path.is_dir():
                _remove_empty(path)
            else:
                path.unlink(missing_ok=True)
            saved.unlink(missing_ok=True)  # to rename a link to its twin leaves both
        undo.rmdir()
        _sync(out)
    _clean(out)


def _clean(out: Path) -> None:
    """Remove the folders that a finished write has emptied, and what it has left lying."""
    for folder in reversed(_folders(_name_of(saved) for saved in (out / DROP).glob(f"{KEPT}*"))):
        _remove_empty(out / folder)
    for leftover in (NEW, DROP):
        if (out / leftover).exists():
            shutil.rmtree(out / leftover)


def _replace(out: Path, files: Files, modes: Mapping[str, int]) -> None:
    try:
        _stage(out, files, modes)
        _save(out, files)
        for folder in _folders(name for name in files if files[name] is not None):
            (out / folder).mkdir(exist_ok=True)
        for name in files:
            if files[name] is None:
                (out / name).unlink()
            else:
                os.replace(out / NEW / _flat(name), out / name)
        for folder in (*_folders(files), "."):
            _sync(out / folder)
        os.rename(out / UNDO, out / DROP)  # the new state is the true one from here on
    except BaseException:
        recover(out)
        raise
    _sync(out)
    with contextlib.suppress(OSError):  # then the next write does it
        _clean(out)


def _stage(out: Path, files: Files, modes: Mapping[str, int]) -> None:
    (out / NEW).mkdir()
    for name, content in files.items():
        if content is None:
            continue
        staged = out / NEW / _flat(name)
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(fd, "wb") as file:
            there = (out / name).exists()
            mode = (out / name).stat().st_mode & 0o7777 if there else modes.get(name)
            if mode is not None:
                os.chmod(staged, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _save(out: Path, files: Files) -> None:
    """Fill the undo folder under another name, so that it is complete as soon as it exists."""
    draft = out / DROP
    draft.mkdir()
    for name in (*_folders(files), *files):
        if not os.path.lexists(out / name):
            (draft / f"{ABSENT}{_flat(name)}").touch()
        elif name in files:
            saved = draft / f"{KEPT}{_flat(name)}"
            try:
                os.link(out / name, saved, follow_symlinks=False)
            except (OSError, NotImplementedError):  # a file system without hard links
                shutil.copy2(out / name, saved, follow_symlinks=False)
    _sync(draft)
    os.rename(draft, out / UNDO)
    _sync(out)


def _flat(name: str) -> str:
    """A name as that of a file beside all others, for our own folders."""
    return quote(name, safe="")


def _name_of(saved: Path) -> str:
    return unquote(saved.name.partition("-")[2])


def _folders(names: Iterable[str]) -> list[str]:
    """The folders that these names lead into, outer ones first."""
    found = {folder.as_posix() for name in names for folder in PurePosixPath(name).parents}
    return sorted(found - {"."})


def _in_the_way(out: Path, files: Files, command: str) -> list[Problem]:
    """What is not a folder, or not a file, where one has to be.

    A link to a folder is none: what it leads to is not ours to write.  One in the place of a file
    is replaced, if at all.
    """
    wanted = [(out / folder, "a folder", {"a folder"}) for folder in _folders(files)]
    wanted += [(out / name, "a file", {"a file", "a symbolic link"}) for name in files]
    hint = f"Move it away, then run `{command}` again."
    return [
        Problem(f"expected {what}, found {_kind(path)}", file=path.as_posix(), hint=hint)
        for path, what, fine in wanted
        if os.path.lexists(path) and _kind(path) not in fine
    ]


def _kind(path: Path) -> str:
    """What lies there, in words."""
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(path.lstat().st_mode), "a device, pipe or socket")


def _is_same(saved: Path, path: Path) -> bool:
    """Whether what was put aside, by a link or as a copy, is still what lies there."""
    if not path.exists() or saved.is_symlink() or path.is_symlink():
        return False
    was, now = saved.stat(), path.stat()
    if os.path.samestat(was, now):
        return True
    return was.st_mode == now.st_mode and saved.read_bytes() == path.read_bytes()


def _remove_empty(folder: Path) -> None:
    """Remove a folder in which there is nothing, or only what Python has compiled."""
    if not folder.is_dir() or folder.is_symlink():
        return
    left = list(folder.iterdir())
    if all(path.name == CACHE and path.is_dir() and not path.is_symlink() for path in left):
        for cache in left:
            shutil.rmtree(cache)
        folder.rmdir()


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other runs out.  The folder itself is locked: a kill unlocks it and leaves nothing."""
    if sys.platform == "win32":  # concurrent runs are not kept apart there
        yield
        return
    import fcntl

    while True:
        fd = os.open(out, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.isdir(out) and os.path.samestat(os.fstat(fd), os.stat(out)):
                yield
                return
        finally:
            os.close(fd)
        out.mkdir(parents=True, exist_ok=True)  # who held the lock has failed, and removed it


def _sync(folder: Path) -> None:
    """Make renames in `folder` last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
