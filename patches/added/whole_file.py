"""Inserted by `whole_files`."""

import contextlib
import os
import shutil

from patches.added.fail import fail


def flush(path):
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def whole_file(path, previous=None):
    """A name to write `path` under; the file takes its place once all of it is on the disk.

    So there is a whole file under that name at every moment, the old one or the new one. The old one stays as
    `previous`, where that is given. Where writing fails, nothing has changed, and the run ends.
    """
    path = os.path.realpath(path)  # where it is a link, it stays one
    temporary = path + '.tmp'
    try:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        yield temporary
        flush(temporary)
        if previous and os.path.exists(path):
            link_whole(path, previous)
        os.replace(temporary, path)
        with contextlib.suppress(OSError):  # some disks cannot do that for a folder
            flush(os.path.dirname(path))
    except (OSError, RuntimeError) as error:
        room = shutil.disk_usage(os.path.dirname(path)).free / 2**20
        fail('cannot write {} ({:.0f} MB free there): {}; what was there stays as it is'.format(
            path, room, str(error).partition('\n')[0]))
    finally:
        with contextlib.suppress(OSError):
            os.remove(temporary)


def link_whole(written, path):
    """Give the file `written` the name `path` too, all at once; a copy only where the disk knows no links.

    A file with two names is safe here: these files are replaced, never written into.
    """
    with whole_file(path) as temporary:
        flush(written)
        try:
            os.link(written, temporary)
        except OSError:
            shutil.copyfile(written, temporary)


@contextlib.contextmanager
def appended(path, mode, **options):
    """`open(path, 'a', ...)` for a few lines, which are in the file all or not at all."""
    with whole_file(path) as temporary:
        if os.path.exists(path):
            shutil.copyfile(path, temporary)
        with open(temporary, mode, **options) as file:
            yield file
