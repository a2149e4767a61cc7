"""Replace a file whole or not at all: whenever the process is killed, the old or the new bytes are there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

try:
    import fcntl
except ImportError:  # Windows: two runs at once are not kept apart there
    fcntl = None


class Refused(Exception):
    """The file is as it was, for this reason."""


def read(path: str) -> tuple[bytes, os.stat_result]:
    """The bytes of a file, and what it was when they were read."""
    with open(path, "rb") as file:
        return file.read(), os.fstat(file.fileno())


def refuse(path: str, was: os.stat_result, roots: Sequence[str] = ()) -> None:
    """Raise Refused where a file should not be replaced.

    That is where it has other names that would keep the old bytes, where it is write-protected, and where it is
    a symbolic link that leads out of `roots`, if there are any.
    """
    target = os.path.realpath(path)
    if (
        roots
        and os.path.islink(path)
        and not any(os.path.commonpath([target, root]) == root for root in roots)
    ):
        raise Refused(f"a symbolic link to {target}, which is outside of what was asked for")
    if was.st_nlink > 1:
        raise Refused(
            f"the file has {was.st_nlink} names (hard links), and the others would keep the old text"
        )
    if not os.access(target, os.W_OK):
        raise Refused("the file is write-protected")


def replace(path: str, content: bytes, was: os.stat_result) -> None:
    """Put `content` into the file at `path`, which keeps mode and owner; a symbolic link stays, its target is replaced.

    Raises Refused where the file is no longer what `was` says, OSError where the system fails.
    """
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    new = os.path.join(
        folder, f".{name}.patcher-new"
    )  # a killed run leaves it, the next one writes over it
    fd = _open(new)
    try:
        with os.fdopen(fd, "wb") as file:
            file.truncate()
            file.write(content)
            if hasattr(os, "fchown") and (os.fstat(fd).st_uid, os.fstat(fd).st_gid) != (
                was.st_uid,
                was.st_gid,
            ):
                os.fchown(fd, was.st_uid, was.st_gid)
            os.chmod(new, stat.S_IMODE(was.st_mode))
            file.flush()
            os.fsync(fd)
            now = os.stat(path)
            if (now.st_ino, now.st_size, now.st_mtime_ns) != (
                was.st_ino,
                was.st_size,
                was.st_mtime_ns,
            ):
                raise Refused("somebody has changed the file in the meantime")
            if fcntl is not None:
                os.replace(new, path)
        if fcntl is None:  # Windows renames no open file
            os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _open(new: str) -> int:
    """The new file, locked: the lock goes when its owner is killed, so what is left unlocked is nobody's."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        fd = os.open(new, flags, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(new)):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise Refused("another run is writing this file") from None
        except FileNotFoundError:  # whoever had it has just put it in place
            pass
        except OSError:  # a file system without locks
            return fd
        os.close(fd)
