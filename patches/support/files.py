"""Files that are complete at every moment, and the folder that they are written to."""

import contextlib
import glob
import os
import shutil
import tempfile
import time

from . import owner, ranks
from .terminal import exit_with_error, warn

SLOW = 15  # seconds

sizes: "dict[str, int]" = {}  # of the files that are appended to, by name
_own: "dict[str, tuple[int, ...] | None]" = {}  # by path, the signature of what this process knows
_slow: "list[str]" = []


def add_options(parser):
    parser.add_argument(
        "--output-dir",
        default=".",
        metavar="DIR",
        help="folder for everything that is written; made if it does not exist "
        "(default: the working directory)",
    )


def enter_output_dir(args):
    """Make --output-dir the working directory; its paths become absolute.

    Rank 0, which alone writes, tries whether it can.
    """
    for name in ("data", "init", "resume"):
        path = getattr(args, name, None)
        if path and path != "auto":
            setattr(args, name, os.path.abspath(path))
    try:
        os.makedirs(args.output_dir, exist_ok=True)
        os.chdir(args.output_dir)
        if ranks.is_rank_zero() and not args.evaluate:
            with tempfile.TemporaryFile(dir=".") as file:
                file.write(b"0")
    except OSError as error:
        exit_with_error(f"--output-dir {args.output_dir}: cannot be written to: {error.strerror}")


@contextlib.contextmanager
def atomic_write(path, previous=None):
    """A name to write `path` under; the file takes its place once all of it is on the disk.

    So there is a complete file under that name at every moment, the old one or the new one. The
    old one stays under the name `previous`, if that is given. If writing fails, nothing has
    changed, and the run ends; also if the folder is another job's by now.
    """
    path = os.path.realpath(path)  # a link stays a link
    temporary = owner.temporary_name(path)
    began = time.monotonic()
    try:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        yield temporary
        flush(temporary)
        if owner.is_lost():
            raise OSError("another job writes here now")
        if previous and os.path.exists(path):
            link(path, previous)
        os.replace(temporary, path)
        adopt(path)
        with contextlib.suppress(OSError):  # some disks cannot do that for a folder
            flush(os.path.dirname(path))
        warn_if_slow(path, time.monotonic() - began)
    except (OSError, RuntimeError) as error:
        room = shutil.disk_usage(os.path.dirname(path)).free / 2**20
        reason = str(error).partition("\n")[0]
        where = f"{path} ({room:.0f} MB free there)"
        exit_with_error(f"cannot write {where}: {reason}; what was there stays as it is")
    finally:
        with contextlib.suppress(OSError):
            os.remove(temporary)


def link(written, path):
    """Give the file `written` the name `path` too, atomically; a copy if the disk has no links.

    A file with two names is safe here: these files are replaced, never written into.
    """
    with atomic_write(path) as temporary:
        flush(written)
        try:
            os.link(written, temporary)
        except OSError:
            shutil.copyfile(written, temporary)


def adopt(path):
    """Remember a file as this process has written it, or found it."""
    _own[os.path.realpath(path)] = signature(path)


def is_own(path) -> bool:
    """Whether no other process has put a file in the place of one that this process knows."""
    found = signature(path)
    return found is None or found == _own.get(os.path.realpath(path))


def signature(path) -> "tuple[int, ...] | None":
    """What tells a file from another one of its name; None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


@contextlib.contextmanager
def appended(path, mode, **options):
    """`open(path, mode, **options)` with mode "a" or "a+": all that is written arrives, or none.

    A checkpoint holds how long the file is then: see `sizes`.
    """
    with atomic_write(path) as temporary:
        if os.path.exists(path):
            shutil.copyfile(path, temporary)
        with open(temporary, mode, **options) as file:
            yield file
    count(path)


def count(path):
    """Let all that has been appended to a file count, for the checkpoints to come."""
    sizes[path] = os.path.getsize(path)


def lengths() -> "dict[str, int]":
    """`sizes`, once so much is on the disk."""
    for path in sizes:
        with contextlib.suppress(OSError):  # if the disk fails, the save will say so
            flush(path)
    return dict(sizes)


def cut(path, size: float):
    """Take off a file what came after its first `size` bytes: a resumed run appends it again."""
    found = os.path.getsize(path) if os.path.exists(path) else 0
    if found > size:
        with atomic_write(path) as temporary:
            shutil.copyfile(path, temporary)
            os.truncate(temporary, int(size))
    sizes[path] = int(min(found, size))


def remove_begun(names):
    """Remove what killed processes had begun to write as one of `names`; for the owner alone."""
    for name in names:
        for path in glob.glob(f"{name}.*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)


def move_away(names) -> "str | None":
    """Move the files of another run into a folder of their own, and give its name; None if none.

    The `names` may be patterns.
    """
    found = [path for name in names for path in sorted(glob.glob(name))]
    if not found:
        return None
    folder = time.strftime("overwritten-%Y%m%d-%H%M%S")
    os.makedirs(folder, exist_ok=True)
    for name in found:
        os.rename(name, os.path.join(folder, name))
    return folder


def warn_if_slow(path, seconds: float):
    """Say once if a write takes so long that torchrun may end it."""
    if seconds > SLOW and not _slow:
        _slow.append(path)
        warn(
            f"writing {path} took {seconds:.0f} s; torchrun kills what still runs 30 s after a "
            "signal: a newer one waits longer with --shutdown-timeout, and --save-every loses less"
        )


def flush(path):
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
