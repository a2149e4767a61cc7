"""An archive as a source: read into memory and never unpacked."""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import IO, cast

from patcher.vendor.arrived import UNPACKED, Arrived, Arriving, Wanted

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# The standard library raises these, beside its own errors, if an archive is damaged or encrypted.
DAMAGED = (zlib.error, struct.error, EOFError, RuntimeError, ValueError, LookupError, OverflowError)


def read(path: Path, wanted: Wanted) -> Arrived:
    import tarfile
    import zipfile

    arriving = Arriving(str(path), wanted)
    try:
        comment = (_zip if zipfile.is_zipfile(path) else _tar)(path, arriving)
    except (tarfile.TarError, zipfile.BadZipFile, *DAMAGED) as error:
        raise arriving.refusal(f"not an archive that can be read: {error}") from None
    top = len(_common_folder(arriving.paths))
    files = {name[top:]: content for name, content in arriving.files.items()}
    paths = sorted(name[top:] for name in arriving.paths)
    commit = comment if COMMIT.fullmatch(comment) else ""  # `git archive` leaves it there
    return Arrived("archive", path.as_posix(), files, paths, commit=commit)


def _zip(path: Path, arriving: Arriving) -> str:
    """Collect what is in a zip file, and return its comment."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            arriving.count()
            name = _inside(arriving, entry.filename)
            if stat.S_ISLNK(entry.external_attr >> 16):
                with archive.open(entry) as file:
                    _link(arriving, name, file.read(4096).decode("utf-8", "replace"))
            elif not entry.is_dir():
                arriving.add(name, partial(archive.open, entry))
        return archive.comment.decode("ascii", "replace")


def _tar(path: Path, arriving: Arriving) -> str:
    """Collect what is in a tar file, compressed or not, and return its comment."""
    import tarfile

    with _unpacked(path, arriving) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for entry in archive:
            arriving.count()
            name = _inside(arriving, entry.name)
            if entry.issym():
                _link(arriving, name, entry.linkname)
            elif entry.islnk():  # its target is a path from the top
                _link(arriving, name, "../" * name.count("/") + entry.linkname)
            elif entry.isfile():
                arriving.add(name, partial(archive.extractfile, entry))
        return str(archive.pax_headers.get("comment", ""))


@contextmanager
def _unpacked(path: Path, arriving: Arriving) -> Iterator[IO[bytes]]:
    """The tar inside a compressed file as a stream, which raises Problem if it is too long."""
    import bz2
    import gzip
    import lzma

    kinds: dict[bytes, Callable[[Path], BufferedIOBase]] = {
        b"\x1f\x8b": gzip.GzipFile,
        b"BZh": bz2.BZ2File,
        b"\xfd7zXZ\0": lzma.LZMAFile,
        b"": lambda path: path.open("rb"),
    }
    with path.open("rb") as file:
        magic = file.read(6)
    with next(opened for start, opened in kinds.items() if magic.startswith(start))(path) as file:
        try:
            yield cast("IO[bytes]", _Limited(file, arriving))  # tarfile needs no more than `read`
        except lzma.LZMAError as error:
            raise EOFError(error) from None


class _Limited:
    def __init__(self, file: BufferedIOBase, arriving: Arriving) -> None:
        self.file, self.arriving, self.left = file, arriving, UNPACKED

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise self.arriving.refusal(f"more than {UNPACKED >> 20} MiB when unpacked")
        return data


def _inside(arriving: Arriving, name: str) -> str:
    """The path of a member as POSIX.  Raises Problem if it leads out of the archive."""
    path = name.replace("\\", "/")
    if re.match(r"/|[A-Za-z]:", path) or ".." in path.split("/") or "\0" in path:
        raise arriving.refusal(f"unsafe: it has a file {name!r}, which would lie outside")
    return PurePosixPath(path).as_posix()


def _link(arriving: Arriving, name: str, target: str) -> None:
    joined = os.path.normpath(os.path.join(os.path.dirname(name), target.replace("\\", "/")))
    if joined.startswith(("/", "..")) or re.match(r"[A-Za-z]:", target):
        raise arriving.refusal(f"unsafe: its link {name!r} leads outside, to {target!r}")
    arriving.pass_link(name)


def _common_folder(names: Iterable[str]) -> str:
    """`name/` if all lies in one folder, as in the archives of a commit that hosts offer."""
    tops = {name.partition("/")[0] + "/" for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    return top if all(name.startswith(top) for name in names) else ""
