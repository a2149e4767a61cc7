"""Where another upstream comes from: a folder, a git repository or an archive, read into memory and never unpacked.

What arrives may be hostile: no link in it is followed, no path may lead out of it, and there are limits.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from patcher.problem import Problem, UsageError

ENTRIES = 20_000  # files and folders
SCRIPT = 4 << 20  # bytes of one file that is wanted
UNPACKED = 256 << 20  # bytes of a whole archive
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# What the standard library raises, beside its own errors, on an archive that is damaged, cut off or encrypted.
DAMAGED = (zlib.error, struct.error, EOFError, RuntimeError, ValueError, LookupError, OverflowError)

Wanted = Callable[[str], bool]  # whether the content of a file of this path is asked for


@dataclass(frozen=True)
class Arrived:
    """What a source holds.  Paths are POSIX, relative to the source or to the one folder that holds all of an archive.

    `origin` is the source in words that may be shown, `repository` its URL where it has one; `commit` is its full
    name and `date` its day, both empty where they are not known.  An archive's commit is what it says of itself.
    """

    kind: str  # folder, git or archive
    origin: str
    files: Mapping[str, bytes]  # what was wanted
    paths: Sequence[str]  # everything that is a file
    repository: str = ""
    commit: str = ""
    date: str = ""
    notes: Sequence[str] = field(default=())


def fetch(source: str, wanted: Wanted, rev: str | None = None, timeout: float = 120) -> Arrived:
    """Read the files that are `wanted` from `source`; a git repository is read at `rev`, or at its HEAD.

    Raises Problem with code 2 where that is not possible, or took longer than `timeout` seconds.
    """
    from patcher import git

    path = Path(source)
    if not path.exists() and is_url(source):
        if re.match(r"https?://.*\.(zip|tar|tgz|tar\.\w+)$", source):
            raise UsageError(f"{source}: an archive is read from a file: download it first")
        return git.fetch(source, wanted, rev, timeout)
    if path.is_dir() and git.is_repository(path):
        return git.fetch(source, wanted, rev, timeout)
    if rev is not None:
        raise UsageError(f"--rev {rev}: {source} is not a git repository")
    try:
        if path.is_dir():
            return _folder(path, wanted)
        if path.is_file():
            return _archive(path, wanted)
    except OSError as error:
        raise _unreadable(source, error.strerror or str(error)) from None
    raise UsageError(f"{source}: there is no such folder, repository or archive")


def is_url(source: str) -> bool:
    """Whether git would take this for an address, `scheme://...` or `host:path`; a drive letter is no host."""
    return "://" in source or bool(re.match(r"([\w.-]+@)?[\w.-]{2,}:(?!\\)", source))


def _folder(folder: Path, wanted: Wanted) -> Arrived:
    files, paths, seen = {}, [], 0
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        seen += len(folders) + len(names)
        if seen > ENTRIES:
            raise _unreadable(str(folder), f"more than {ENTRIES} files", "Give the folder that holds the scripts.")
        for name in sorted(names):
            path = Path(place, name)
            inside = path.relative_to(folder).as_posix()
            if path.is_symlink():
                _refuse_link(folder, inside, wanted)
            elif path.is_file():
                paths.append(inside)
                if wanted(inside):
                    with path.open("rb") as file:
                        files[inside] = _limited(file.read(SCRIPT + 1), f"{folder}: {inside}")
    return Arrived("folder", folder.as_posix(), files, paths)


def _raise(error: OSError) -> None:
    raise error  # `os.walk` would leave out what it may not read


# Archives


def _archive(path: Path, wanted: Wanted) -> Arrived:
    import tarfile
    import zipfile

    try:
        read = _zip if zipfile.is_zipfile(path) else _tar
        members, commit = read(path, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, *DAMAGED) as error:
        raise _unreadable(str(path), f"not an archive that can be read: {error}") from None
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
            raise _unreadable(str(path), f"more than {ENTRIES} files")
        for entry in entries:
            name = _inside(path, entry.filename)
            if stat.S_ISLNK(entry.external_attr >> 16):
                target = archive.open(entry).read(4096).decode("utf-8", "replace")
                _check_link(path, name, target, wanted)
            elif not entry.is_dir():
                content = None
                if wanted(name):
                    with archive.open(entry) as file:  # the size that an entry states may be a lie
                        content = _limited(file.read(SCRIPT + 1), f"{path}: {name}")
                _add(path, members, name, content, wanted)
        comment = archive.comment.decode("ascii", "replace")
    return members, comment if COMMIT.fullmatch(comment) else ""  # `git archive` leaves the commit there


def _tar(path: Path, wanted: Wanted) -> tuple[dict[str, bytes | None], str]:
    import tarfile

    members: dict[str, bytes | None] = {}
    with _unpacked(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for count, entry in enumerate(archive, 1):
            if count > ENTRIES:
                raise _unreadable(str(path), f"more than {ENTRIES} files")
            name = _inside(path, entry.name)
            if entry.issym() or entry.islnk():
                target = entry.linkname if entry.issym() else f"{'../' * name.count('/')}{entry.linkname}"
                _check_link(path, name, target, wanted)
            elif entry.isfile():
                content = None
                if wanted(name):
                    content = _limited(archive.extractfile(entry).read(SCRIPT + 1), f"{path}: {name}")
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
            raise _unreadable(str(self.path), f"more than {UNPACKED >> 20} MiB when unpacked")
        return data


def _inside(archive: Path, name: str) -> str:
    """The path of a member as POSIX.  Raises Problem where it leads out of the archive."""
    path = name.replace("\\", "/")
    if path.startswith("/") or re.match(r"[A-Za-z]:", path) or ".." in path.split("/") or "\0" in path:
        raise _unreadable(str(archive), f"unsafe: it has a file {name!r}, which would lie outside")
    return PurePosixPath(path).as_posix()


def _check_link(archive: Path, name: str, target: str, wanted: Wanted) -> None:
    joined = os.path.normpath(os.path.join(os.path.dirname(name), target.replace("\\", "/")))
    if joined.startswith(("/", "..")) or re.match(r"[A-Za-z]:", target):
        raise _unreadable(str(archive), f"unsafe: its link {name!r} leads outside, to {target!r}")
    _refuse_link(archive, name, wanted)


def _refuse_link(source: Path, name: str, wanted: Wanted) -> None:
    if wanted(name):
        raise _unreadable(str(source), f"{name} is a link, and links are not followed")


def _add(archive: Path, members: dict, name: str, content: bytes | None, wanted: Wanted) -> None:
    if name in members and wanted(name):
        raise _unreadable(str(archive), f"{name} is in it twice")
    members[name] = content


def _common_folder(names) -> str:
    """`name/` where everything lies in one folder, as in the archives of a commit that hosts offer."""
    tops = {name.partition("/")[0] + "/" for name in names}
    top = tops.pop() if len(tops) == 1 else ""
    return top if all(name.startswith(top) for name in names) else ""


def _limited(content: bytes, what: str) -> bytes:
    if len(content) > SCRIPT:
        raise _unreadable(what, f"larger than {SCRIPT >> 20} MiB")
    return content


def _unreadable(what: str, why: str, hint: str = "Nothing was written.") -> Problem:
    return Problem(why, file=what, hint=hint, code=2)
