"""An archive as a source: read into memory and never unpacked."""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from patcher.vendor.arrived import (
    ENTRIES,
    SCRIPT,
    UNPACKED,
    Arrived,
    Wanted,
    limited,
    refuse_link,
    unreadable,
)

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# What the standard library raises, beside its own errors, on an archive that is damaged, cut off or encrypted.
DAMAGED = (zlib.error, struct.error, EOFError, RuntimeError, ValueError, LookupError, OverflowError)


def read(path: Path, wanted: Wanted) -> Arrived:
    import tarfile
    import zipfile

    try:
        members, commit = (_zip if zipfile.is_zipfile(path) else _tar)(path, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, *DAMAGED) as error:
        raise unreadable(str(path), f"not an archive that can be read: {error}") from None
    top = _common_folder(members)
    found = {name[len(top) :]: content for name, content in members.items()}
    files = {name: content for name, content in found.items() if content is not None}
    return Arrived("archive", path.as_posix(), files, sorted(found), commit=commit)


def _zip(path: Path, wanted: Wanted) -> tuple[dict[str, bytes | None], str]:
    import zipfile

    members: dict[str, bytes | None] = {}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > ENTRIES:
            raise unreadable(str(path), f"more than {ENTRIES} files")
        for entry in entries:
            name = _inside(path, entry.filename)
            if stat.S_ISLNK(entry.external_attr >> 16):
                target = archive.open(entry).read(4096).decode("utf-8", "replace")
                _check_link(path, name, target, wanted)
            elif not entry.is_dir():
                content = None
                if wanted(name):
                    with archive.open(entry) as file:  # the size that an entry states may be a lie
                        content = limited(file.read(SCRIPT + 1), f"{path}: {name}")
                _add(path, members, name, content, wanted)
        comment = archive.comment.decode("ascii", "replace")
    return members, comment if COMMIT.fullmatch(
        comment
    ) else ""  # `git archive` leaves the commit there


def _tar(path: Path, wanted: Wanted) -> tuple[dict[str, bytes | None], str]:
    import tarfile

    members: dict[str, bytes | None] = {}
    with _unpacked(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, entry in enumerate(archive, 1):
            if count > ENTRIES:
                raise unreadable(str(path), f"more than {ENTRIES} files")
            name = _inside(path, entry.name)
            if entry.issym() or entry.islnk():
                target = (
                    entry.linkname
                    if entry.issym()
                    else f"{'../' * name.count('/')}{entry.linkname}"
                )
                _check_link(path, name, target, wanted)
            elif entry.isfile():
                content = None
                if wanted(name):
                    content = limited(
                        archive.extractfile(entry).read(SCRIPT + 1), f"{path}: {name}"
                    )
                _add(path, members, name, content, wanted)
        comment = archive.pax_headers.get("comment", "")
    return members, comment if COMMIT.fullmatch(comment) else ""


@contextmanager
def _unpacked(path: Path) -> Iterator:
    """The tar inside a compressed file as a stream, which ends in a Problem where it is unreasonably long."""
    import bz2
    import gzip
    import lzma

    with path.open("rb") as file:
        magic = file.read(6)
    kinds = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    opener = next((opener for start, opener in kinds.items() if magic.startswith(start)), open)
    with opener(path, "rb") as file:
        try:
            yield _Limited(file, path)
        except lzma.LZMAError as error:
            raise EOFError(error) from None


class _Limited:
    def __init__(self, file, path: Path):
        self.file, self.path, self.left = file, path, UNPACKED

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise unreadable(str(self.path), f"more than {UNPACKED >> 20} MiB when unpacked")
        return data


def _inside(archive: Path, name: str) -> str:
    """The path of a member as POSIX.  Raises Problem where it leads out of the archive."""
    path = name.replace("\\", "/")
    if (
        path.startswith("/")
        or re.match(r"[A-Za-z]:", path)
        or ".." in path.split("/")
        or "\0" in path
    ):
        raise unreadable(str(archive), f"unsafe: it has a file {name!r}, which would lie outside")
    return PurePosixPath(path).as_posix()


def _check_link(archive: Path, name: str, target: str, wanted: Wanted) -> None:
    joined = os.path.normpath(os.path.join(os.path.dirname(name), target.replace("\\", "/")))
    if joined.startswith(("/", "..")) or re.match(r"[A-Za-z]:", target):
        raise unreadable(str(archive), f"unsafe: its link {name!r} leads outside, to {target!r}")
    refuse_link(archive, name, wanted)


def _add(archive: Path, members: dict, name: str, content: bytes | None, wanted: Wanted) -> None:
    if name in members and wanted(name):
        raise unreadable(str(archive), f"{name} is in it twice")
    members[name] = content


def _common_folder(names) -> str:
    """`name/` where everything lies in one folder, as in the archives of a commit that hosts offer."""
    tops = {name.partition("/")[0] + "/" for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    return top if all(name.startswith(top) for name in names) else ""
