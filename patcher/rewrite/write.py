"""Replace a file whole or not at all: if the process is killed, the old or the new bytes stay."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Sequence

if sys.platform != "win32":
    import fcntl


class NotReplaced(Exception):
    """The file is as it was, for this reason."""


def read(path: str) -> tuple[bytes, os.stat_result]:
    """The bytes of a file, and what it was when they were read."""
    with open(path, "rb") as file:
        return file.read(), os.fstat(file.fileno())


def refuse(path: str, was: os.stat_result, roots: Sequence[str] = ()) -> None:
    """Raise NotReplaced if a file should not be replaced.

    It has other names that would keep the old bytes, is write-protected, or is a symbolic link
    that leads out of `roots`, if there are any.
    """
    target = os.path.realpath(path)
    within = any(os.path.commonpath([target, root]) == root for root in roots)
    if roots and os.path.islink(path) and not within:
        raise NotReplaced(f"a symbolic link to {target}, which is outside of what was asked for")
    if was.st_nlink > 1:
        names = f"the file has {was.st_nlink} names (hard links)"
        raise NotReplaced(f"{names}, and the others would keep the old text")
    if not os.access(target, os.W_OK):
        raise NotReplaced("the file is write-protected")


def replace(path: str, content: bytes, was: os.stat_result) -> None:
    """Put `content` into a file, which keeps mode and owner; of a symbolic link into its target.

    Raises NotReplaced if the file is no longer what `was` says, OSError if the system fails.
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    # A killed run leaves this file, the next one writes over it.
    new = os.path.join(folder, f".{name}.patcher-new")
    fd = _open(new)
    try:
        with os.fdopen(fd, "wb") as file:
            file.truncate()
            file.write(content)
            made = os.fstat(fd)
            if sys.platform != "win32" and (made.st_uid, made.st_gid) != (was.st_uid, was.st_gid):
                os.fchown(fd, was.st_uid, was.st_gid)
            os.chmod(new, stat.S_IMODE(was.st_mode))
            file.flush()
            os.fsync(fd)
            if _state(os.stat(path)) != _state(was):
                raise NotReplaced("somebody has changed the file in the meantime")
            if sys.platform != "win32":
                os.replace(new, path)
        if sys.platform == "win32":  # it renames no open file
            os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _state(of: os.stat_result) -> tuple[int, int, int]:
    return of.st_ino, of.st_size, of.st_mtime_ns


def _open(new: str) -> int:
    """The new file, locked.  The lock goes if its owner is killed: an unlocked one is nobody's."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        fd = os.open(new, flags, 0o600)
        try:
            if sys.platform != "win32":  # there two runs at once are not kept apart
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(new)):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise NotReplaced("another run is writing this file") from None
        except FileNotFoundError:  # whoever had it has just put it in place
            pass
        except OSError:  # a file system without locks
            return fd
        os.close(fd)
