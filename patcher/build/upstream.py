"""The lock: which bytes `upstream/` holds, and which line of it was edited.

`upstream/lock.json` records, of the scripts that the patches are written against, sha256, size and
one checksum a line; of the public original, repository, commit and sha256; and which patches were
stale when the scripts were taken in (`vendor --accept-stale`), if any.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patcher.build.manifest import UNDO
from patcher.core.problem import Problem
from patcher.core.unified import lines

RESTORE = (
    "upstream/ is never edited by hand: restore it with `git checkout -- upstream`, "
    "and write a patch instead."
)


def read(folder: Path) -> dict[str, Any]:
    """The lock.  Raises Problem if it is not one."""
    try:
        lock: dict[str, Any] = json.loads((folder / "lock.json").read_bytes())
        for entry in lock["files"].values():
            _expect(entry, sha256=str, size=int, lines=str)
        _expect(lock["original"], repository=str, commit=str)
        for entry in lock["original"].get("files", {}).values():
            _expect(entry, sha256=str)
        _expect({"stale": lock.get("stale", [])}, stale=list)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"not a lock: {type(error).__name__}: {error}"
        raise Problem(message, file="upstream/lock.json", hint=RESTORE) from None
    return lock


def _expect(entry: Mapping[str, object], **types: type) -> None:
    for key, kind in types.items():
        if not isinstance(entry[key], kind):
            raise TypeError(f"{key!r} is not of type {kind.__name__}")


def verify(folder: Path) -> tuple[dict[str, bytes], list[Problem]]:
    """The locked scripts by name, and what is wrong: missing, edited, or not in the lock.

    They have the line ends that the lock says, whatever git's core.autocrlf has made of them.
    Raises Problem if a kill has left a mixture of two upstreams.
    """
    if (folder / UNDO).exists():
        message = "taking in another upstream was interrupted"
        hint = "Run `python -m patcher vendor SOURCE --write` again: it first puts back what was "
        raise Problem(message, file="upstream", hint=f"{hint}there.")
    locked = read(folder)["files"]
    scripts, problems = {}, []
    for name in sorted(locked.keys() | {path.name for path in folder.glob("[!.]*.py")}):
        file = f"upstream/{name}"
        if name not in locked:
            problems.append(Problem("not in upstream/lock.json", file=file, hint=RESTORE))
        elif not (folder / name).is_file():
            problems.append(Problem("missing, but in upstream/lock.json", file=file, hint=RESTORE))
        else:
            scripts[name] = _restored((folder / name).read_bytes(), locked[name]["sha256"])
            problems += _edits(name, scripts[name], locked[name])
    return scripts, problems


def _restored(source: bytes, sha256: str) -> bytes:
    """The bytes that the lock names if only line ends differ; else `source`."""
    unix = source.replace(b"\r\n", b"\n")
    forms = (source, unix, unix.replace(b"\n", b"\r\n"))
    return next((form for form in forms if hashlib.sha256(form).hexdigest() == sha256), source)


def entry(source: bytes) -> dict[str, str | int]:
    """What the lock records of one script."""
    digest = hashlib.sha256(source).hexdigest()
    return {"sha256": digest, "size": len(source), "lines": "".join(_checksums(lines(source)))}


def _checksums(lines: Sequence[bytes]) -> list[str]:
    return [f"{zlib.crc32(line):08x}" for line in lines]


def _edits(name: str, source: bytes, locked: Mapping[str, Any]) -> list[Problem]:
    if hashlib.sha256(source).hexdigest() != locked["sha256"]:
        then, now = locked["lines"], lines(source)
        then = [then[i : i + 8] for i in range(0, len(then), 8)]
        line, found = first_edit(then, _checksums(now), now)
        message = "edited by hand: sha256 is not the lock's; this is the first line that differs"
        message += f", now {found}"
        return [Problem(message, file=f"upstream/{name}", line=line, hint=RESTORE)]
    if len(source) != locked["size"]:
        message = f"{name}: expected size {len(source)}, found {locked['size']}"
        return [Problem(message, file="upstream/lock.json", hint=RESTORE)]
    return []


def first_edit(
    then: Sequence[object], now: Sequence[object], text: Sequence[bytes]
) -> tuple[int, str]:
    """The first line that differs, from 1, and what `text` has there now, in words."""
    at = next((i for i, (a, b) in enumerate(zip(then, now)) if a != b), min(len(then), len(now)))
    if at == len(text):
        return at + 1, "the end of the file"
    return at + 1, repr(text[at].decode("utf-8", "replace").strip())
