"""The lock: which bytes `upstream/` holds, and which line of it is no longer what it was.

`upstream/lock.json` records, for the scripts that the patches are written against, sha256,
size and one checksum a line; for the public original, repository, commit and sha256; and which
patches were stale when they were taken in (`vendor --accept-stale`), if any.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

from patcher.build.manifest import UNDO
from patcher.core.problem import Problem
from patcher.core.unified import lines

RESTORE = "upstream/ is never edited by hand: restore it with `git checkout -- upstream`, and write a patch instead."


def read(folder: Path) -> dict:
    """The lock.  Raises Problem where it is not one."""
    try:
        lock = json.loads((folder / "lock.json").read_bytes())
        for entry in lock["files"].values():
            _expect(entry, sha256=str, size=int, lines=str)
        _expect(lock["original"], repository=str, commit=str)
        for entry in lock["original"].get("files", {}).values():
            _expect(entry, sha256=str)
        _expect({"stale": lock.get("stale", [])}, stale=list)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Problem(
            f"not a lock: {type(error).__name__}: {error}", file="upstream/lock.json", hint=RESTORE
        ) from None
    return lock


def _expect(entry: dict, **types: type) -> None:
    for key, kind in types.items():
        if not isinstance(entry[key], kind):
            raise TypeError(f"{key!r} is not of type {kind.__name__}")


def verify(folder: Path) -> tuple[dict[str, bytes], list[Problem]]:
    """The locked scripts by name, and what is wrong with them: missing, edited, or not in the lock.

    They have the line ends that the lock says, whatever git's core.autocrlf has made of them.
    Raises Problem where a kill has left a mixture of two upstreams.
    """
    if (folder / UNDO).exists():
        message, again = (
            "taking in another upstream was interrupted",
            "`python -m patcher vendor SOURCE --write`",
        )
        raise Problem(
            message, file="upstream", hint=f"Run {again} again: it first puts back what was there."
        )
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
            if hashlib.sha256(scripts[name]).hexdigest() != locked[name]["sha256"]:
                problems.append(_edited(file, scripts[name], locked[name]))
            elif len(scripts[name]) != locked[name]["size"]:
                message = f"{name}: the size {locked[name]['size']} is not that of the bytes with this sha256"
                problems.append(Problem(message, file="upstream/lock.json", hint=RESTORE))
    return scripts, problems


def _restored(source: bytes, sha256: str) -> bytes:
    """The bytes that the lock names if only line ends differ, since a checkout may change them; else `source`."""
    unix = source.replace(b"\r\n", b"\n")
    forms = (source, unix, unix.replace(b"\n", b"\r\n"))
    return next((form for form in forms if hashlib.sha256(form).hexdigest() == sha256), source)


def entry(source: bytes) -> dict:
    """What the lock records of one script."""
    return {
        "sha256": hashlib.sha256(source).hexdigest(),
        "size": len(source),
        "lines": "".join(f"{zlib.crc32(line):08x}" for line in lines(source)),
    }


def _edited(file: str, source: bytes, locked: dict) -> Problem:
    sums = [locked["lines"][i : i + 8] for i in range(0, len(locked["lines"]), 8)]
    now = lines(source)
    at = next(
        (i for i, (line, s) in enumerate(zip(now, sums)) if f"{zlib.crc32(line):08x}" != s),
        min(len(now), len(sums)),
    )
    found = (
        repr(now[at].decode("utf-8", "replace").strip()) if at < len(now) else "the end of the file"
    )
    return Problem(
        f"edited by hand: sha256 is not the lock's; this is the first line that differs, now {found}",
        file=file,
        line=at + 1,
        hint=RESTORE,
    )
