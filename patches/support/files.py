"""Files that are complete at every moment, and the folder that they are written to."""

import contextlib
import glob
import os
import shutil
import tempfile

from . import ranks
from .terminal import exit_with_error


def add_options(parser):
    parser.add_argument(
        "--output-dir",
        default=".",
        metavar="DIR",
        help="folder for everything that is written; made if it does not exist "
        "(default: the working directory)",
    )


def enter_output_dir(args):
    """Make --output-dir the working directory; `args.data` and `args.resume` become absolute.

    Rank 0, which alone writes, tries whether it can. It also removes what a killed run had begun
    to write.
    """
    for name in ("data", "resume"):
        path = getattr(args, name, None)
        if path and path != "auto":
            setattr(args, name, os.path.abspath(path))
    try:
        os.makedirs(args.output_dir, exist_ok=True)
        os.chdir(args.output_dir)
        if ranks.is_rank_zero() and not args.evaluate:
            with tempfile.TemporaryFile(dir=".") as file:
                file.write(b"0")
            for path in glob.glob("*.pth.tar.tmp") + glob.glob("*.csv.tmp"):
                os.remove(path)
    except OSError as error:
        exit_with_error(f"--output-dir {args.output_dir}: cannot be written to: {error.strerror}")


@contextlib.contextmanager
def atomic_write(path, previous=None):
    """A name to write `path` under; the file takes its place once all of it is on the disk.

    So there is a complete file under that name at every moment, the old one or the new one. The
    old one stays under the name `previous`, if that is given. If writing fails, nothing has
    changed, and the run ends.
    """
    path = os.path.realpath(path)  # a link stays a link
    temporary = path + ".tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        yield temporary
        flush(temporary)
        if previous and os.path.exists(path):
            link(path, previous)
        os.replace(temporary, path)
        with contextlib.suppress(OSError):  # some disks cannot do that for a folder
            flush(os.path.dirname(path))
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


@contextlib.contextmanager
def appended(path, mode, **options):
    """`open(path, mode, **options)` with mode "a" or "a+": all that is written arrives, or none."""
    with atomic_write(path) as temporary:
        if os.path.exists(path):
            shutil.copyfile(path, temporary)
        with open(temporary, mode, **options) as file:
            yield file


def flush(path):
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
