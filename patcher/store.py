"""Put a set of files into a folder: all of them, or none.

The new files are written and synced beside the old ones first; what fails there has changed
nothing.  Then the old ones are hard-linked into `.patcher-undo`, and while that folder exists
the old state is the true one: a failed rename, or the next run after a kill, puts it back.
Renaming the folder away is the moment at which the new state becomes the true one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from patcher.build import UNDO
from patcher.problem import Problem, Problems

try:
    import fcntl
except ImportError:  # Windows: concurrent runs are not kept apart there
    fcntl = None

NEW, DROP = ".patcher-new", ".patcher-drop"
KEPT, ABSENT = "kept-", "absent-"


def write(
    out: Path,
    files: Mapping[str, bytes | None] | Callable[[], Mapping[str, bytes | None]],
    modes: Mapping[str, int],
    refuse: Callable[[Path, Mapping[str, bytes | None]], list[Problem]] | None = None,
    command: str = "apply",
) -> list[str]:
    """Make `out` hold `files`, in their order, and return the names of those that changed; None removes a file.

    `files` may be a function, which is called when `out` is locked and as a finished run has left it.
    A file that is replaced keeps its mode; a new one gets that of `modes`, or what the umask says.
    `refuse` is asked under the lock whether something stands in the way.  Raises Problem(s) with
    `out` as it was; `command` is what then to run again.
    """
    try:
        created = _make(out)
        try:
            with _locked(out):
                recover(out)
                files = files() if callable(files) else files
                problems = refuse(out, files) if refuse else []
                if problems:
                    raise Problems(problems)
                changed = [
                    name for name, content in files.items() if _read(out / name) != content or (out / name).is_symlink()
                ]
                if changed:
                    _replace(out, {name: files[name] for name in changed}, modes)
                return changed
        except BaseException:
            for folder in created:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
    except OSError as error:
        whole = not os.path.lexists(out / UNDO)
        hint = f"{out} is as it was." if whole else f"Run `{command}` again: it first puts back what was there."
        raise Problem(f"cannot write: {error.strerror}", file=str(error.filename or out), hint=hint, code=2) from error


def repair(out: Path) -> None:
    """`recover`, where there is need of it and no other run is at work.  Raises Problem where that fails."""
    try:
        if os.path.lexists(out / UNDO):
            with _locked(out):
                recover(out)
    except OSError as error:
        raise Problem(f"cannot write: {error.strerror}", file=str(error.filename or out), code=2) from error


def recover(out: Path) -> None:
    """Put back what a killed or failed run had replaced, and drop what it left lying."""
    undo = out / UNDO
    if undo.is_dir():
        for saved in sorted(undo.iterdir()):
            if saved.name.startswith(KEPT):
                os.replace(saved, out / saved.name.removeprefix(KEPT))
            else:
                (out / saved.name.removeprefix(ABSENT)).unlink(missing_ok=True)
            saved.unlink(missing_ok=True)  # renaming a link to another link of the same file leaves both
        undo.rmdir()
        _sync(out)
    for leftover in (NEW, DROP):
        if (out / leftover).exists():
            shutil.rmtree(out / leftover)


def _replace(out: Path, files: Mapping[str, bytes | None], modes: Mapping[str, int]) -> None:
    try:
        _stage(out, files, modes)
        _save(out, files)
        for name in files:
            if files[name] is None:
                (out / name).unlink()
            else:
                os.replace(out / NEW / name, out / name)
        _sync(out)
        os.rename(out / UNDO, out / DROP)  # the new state is the true one from here on
    except BaseException:
        recover(out)
        raise
    _sync(out)
    for leftover in (NEW, DROP):
        shutil.rmtree(out / leftover, ignore_errors=True)


def _stage(out: Path, files: Mapping[str, bytes | None], modes: Mapping[str, int]) -> None:
    (out / NEW).mkdir()
    for name, content in files.items():
        if content is None:
            continue
        fd = os.open(out / NEW / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(fd, "wb") as file:
            mode = (out / name).stat().st_mode & 0o7777 if (out / name).exists() else modes.get(name)
            if mode is not None:
                os.chmod(out / NEW / name, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _save(out: Path, files: Mapping[str, bytes | None]) -> None:
    """Fill the undo folder under another name, so that it is complete as soon as it exists."""
    draft = out / DROP
    draft.mkdir()
    for name in files:
        if not os.path.lexists(out / name):
            (draft / f"{ABSENT}{name}").touch()
            continue
        try:
            os.link(out / name, draft / f"{KEPT}{name}", follow_symlinks=False)
        except (OSError, NotImplementedError):  # a file system without hard links
            shutil.copy2(out / name, draft / f"{KEPT}{name}", follow_symlinks=False)
    _sync(draft)
    os.rename(draft, out / UNDO)
    _sync(out)


def _make(out: Path) -> list[Path]:
    """Create `out`; return the folders that did not exist, the deepest first."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    return missing


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keep other runs out.  The folder itself is locked: nothing is left behind, and a kill unlocks it."""
    if fcntl is None:
        yield
        return
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
        out.mkdir(parents=True, exist_ok=True)  # whoever held the lock has failed, and removed the folder


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _sync(folder: Path) -> None:
    """Make renames in `folder` last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
