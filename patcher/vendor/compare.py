"""What has arrived from a source, and how it differs from `upstream/`.

Pure: it knows no paths but those inside the source.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from patcher.build.verdicts import printable
from patcher.core import unified
from patcher.core.problem import Problem, Problems, UsageError
from patcher.vendor.arrived import Arrived

LICENCE = re.compile(r"(LICEN[CS]E|COPYING)(\.(txt|md|rst))?", re.IGNORECASE)
LICENCES = {  # SPDX names, and the words by which each is known; the licence is the one whose words come first
    "MIT": "permission is hereby granted free of charge to any person obtaining a copy of this software and",
    "Apache-2.0": "apache license version 2.0",
    "AGPL-3.0": "gnu affero general public license",
    "LGPL": "gnu lesser general public license",
    "GPL": "gnu general public license",
    "MPL-2.0": "mozilla public license version 2.0",
    "BSD": "redistribution and use in source and binary forms",
}
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Present:
    """What `upstream/` holds: the lock, the scripts by name, and the text of the licence."""

    lock: Mapping
    scripts: Mapping[str, bytes]
    licence: bytes | None


def wanted(lock: Mapping) -> Callable[[str], bool]:
    """Which files of a source are to be read: those of the names that the lock has, and licences."""

    def is_wanted(path: str) -> bool:
        name = path.rpartition("/")[2]
        return name in lock["files"] or bool(LICENCE.fullmatch(name))

    return is_wanted


def choose(
    arrived: Arrived, lock: Mapping, folder: str | None = None
) -> tuple[dict[str, str], list[Problem]]:
    """The path of each script that the lock names, and a problem for each that is not there.

    In the public original they lie at the root, so one there is meant; else there has to be only one.
    `folder` says where instead.  Raises Problem(s) where none is there, or one of several could be meant.
    """
    paths = sorted(arrived.files)
    if folder is not None:
        prefix = PurePosixPath(folder.replace("\\", "/")).as_posix().strip("/")
        paths = [
            path for path in paths if path.rpartition("/")[0] == ("" if prefix == "." else prefix)
        ]
    chosen, missing, several = {}, [], []
    for name in sorted(lock["files"]):
        found = [path for path in paths if path.rpartition("/")[2] == name]
        if name in found or len(found) == 1:
            chosen[name] = name if name in found else found[0]
        elif found:
            message = f"{name} is there {len(found)} times: {', '.join(found)}"
            several.append(
                UsageError(
                    message, file=arrived.origin, hint="Say which folder is meant, with --path."
                )
            )
        else:
            missing.append(_missing(arrived, name))
    if several:
        raise Problems(several)
    if not chosen:
        for problem in missing:
            problem.code = 2
        raise Problems(missing)
    return chosen, missing


def _missing(arrived: Arrived, name: str) -> Problem:
    names = {path.rpartition("/")[2]: path for path in arrived.paths if path.endswith(".py")}
    alike = [names[close] for close in difflib.get_close_matches(name, names, n=3)]
    hint = f"Was it renamed? There is {', '.join(alike)}." if alike else "Is this the right source?"
    return Problem(
        f"{name} is not there, but in upstream/lock.json", file=arrived.origin, hint=printable(hint)
    )


def is_pinned(scripts: Mapping[str, bytes], lock: Mapping) -> bool:
    pinned = lock["original"].get("files", {})
    return bool(pinned) and all(
        name in scripts and sha256(scripts[name]) == pinned[name].get("sha256") for name in pinned
    )


def origin(
    arrived: Arrived, scripts: Mapping[str, bytes], lock: Mapping
) -> tuple[list[str], list[Problem]]:
    """Whether this is the pinned original: said first, and wrong where the commit says so and the bytes do not."""
    original = lock["original"]
    commit, pinned = original["commit"], original.get("files", {})
    is_that_commit = bool(arrived.commit) and arrived.commit.startswith(commit)
    where = f"{arrived.kind} {arrived.origin}" + (
        f", commit {arrived.commit}" if arrived.commit else ""
    )
    where += f" of {arrived.date}" if arrived.date else ""
    if is_pinned(scripts, lock):
        since = (
            ""
            if is_that_commit or not arrived.commit
            else "; the scripts are the same in the commit at hand"
        )
        return [f"the pinned original (commit {commit}){since}", where], []
    differing = [
        n
        for n in sorted(pinned)
        if n not in scripts or sha256(scripts[n]) != pinned[n].get("sha256")
    ]
    unix = {name: source.replace(b"\r\n", b"\n") for name, source in scripts.items()}
    what = (
        "the pinned original, but for its line endings"
        if is_pinned(unix, lock)
        else "not the pinned original"
    )
    first = f"{what} (commit {commit}): other sha256 of {', '.join(differing)}"
    problems = []
    if is_that_commit and pinned and not is_pinned(unix, lock):
        message = f"it says that it is the pinned commit {commit}, but these files are not that commit's: "
        hint = "Do not take it in before you know why. Fetch it again, best with git."
        problems = [Problem(message + ", ".join(differing), file=arrived.origin, hint=hint)]
    notes = [first, where]
    if arrived.repository and _bare(arrived.repository) != _bare(original["repository"]):
        notes.append(f"another repository than that of the lock, {original['repository']}")
    return notes, problems


def _bare(url: str) -> str:
    return url.removesuffix("/").removesuffix(".git").lower()


def changes(
    chosen: Mapping, scripts: Mapping[str, bytes], present: Mapping[str, bytes]
) -> Iterator[str]:
    for name, source in scripts.items():
        place = "" if chosen[name] == name else f" (at {chosen[name]})"
        before = present.get(name)
        if before == source:
            yield f"{name}{place}: as in upstream/, sha256 {sha256(source)}"
            continue
        if before is None:
            yield f"{name}{place}: {len(source)} bytes, sha256 {sha256(source)}"
            continue
        added, removed = _difference(before, source)
        yield (
            f"{name}{place}: {len(before)} -> {len(source)} bytes, "
            f"{len(unified.lines(before))} -> {len(unified.lines(source))} lines (+{added} -{removed})"
        )
        yield f"  sha256 {sha256(before)} -> {sha256(source)}"
        if (b"\r\n" in before) != (b"\r\n" in source):
            yield f"  line endings: {_line_ending(before)} -> {_line_ending(source)}"


def _line_ending(source: bytes) -> str:
    return "CRLF" if b"\r\n" in source else "LF"


def _difference(before: bytes, after: bytes) -> tuple[int, int]:
    """How many lines are new and how many are gone; line endings do not count."""
    old, new = (unified.lines(side.replace(b"\r\n", b"\n")) for side in (before, after))
    same = sum(
        block.size for block in difflib.SequenceMatcher(None, old, new, False).get_matching_blocks()
    )
    return len(new) - same, len(old) - same


def fact(path: str, source: bytes, before: bytes | None) -> dict:
    added, removed = _difference(before or b"", source)
    return {
        "path": path,
        "sha256": sha256(source),
        "size": len(source),
        "lines": len(unified.lines(source)),
        "before": None if before is None else {"sha256": sha256(before), "size": len(before)},
        "added": added,
        "removed": removed,
    }


def licence(
    arrived: Arrived, chosen: Mapping, present: Present
) -> tuple[bytes | None, list[str], list[Problem]]:
    """The licence beside the scripts, else at the root; another kind is for a maintainer to decide."""
    folders = dict.fromkeys([*(path.rpartition("/")[0] for path in chosen.values()), ""])
    files = [p for f in folders for p in sorted(arrived.files) if p.rpartition("/")[0] == f]
    path = next((p for p in files if LICENCE.fullmatch(p.rpartition("/")[2])), None)
    before = present.lock.get("licence", UNKNOWN)
    if path is None:
        message = f"no licence is there; upstream/LICENSE is {before} and stays as it is"
        if arrived.kind == "folder":  # two scripts that somebody has copied
            return None, [f"licence: {message}"], []
        return (
            None,
            [],
            [Problem(message, file=arrived.origin, hint="May these scripts still be passed on?")],
        )
    text = arrived.files[path]
    kind = kind_of(text)
    if kind != before:
        message = f"the licence has changed from {before} to {kind}"
        hint = "Read it, and take it in with --accept-licence if that is all right."
        return text, [], [Problem(message, file=path, hint=hint)]
    if present.licence is not None and present.licence.split() == text.split():
        return present.licence, [f"licence: {kind}, unchanged"], []
    return text, [f"licence: {kind} as before, but another text: {path}"], []


def kind_of(licence: bytes) -> str:
    """The SPDX name of a licence, as far as its wording tells."""
    words = re.sub(r"[^a-z0-9.]+", " ", licence.decode("utf-8", "replace").lower())
    places = {name: words.find(phrase) for name, phrase in LICENCES.items()}
    return min((name for name in places if places[name] >= 0), key=places.get, default=UNKNOWN)


def beside(arrived: Arrived, chosen: Mapping, lock: Mapping) -> tuple[list[str], list[str]]:
    """The scripts that lie beside ours: those that were not there when the lock was written, and all."""
    folders = {path.rpartition("/")[0] for path in chosen.values()}
    beside = sorted(
        path
        for path in arrived.paths
        if path.endswith(".py")
        and path.rpartition("/")[0] in folders
        and path not in chosen.values()
    )
    names = [path.rpartition("/")[2] for path in beside]
    known = lock["original"].get("beside", [])
    return [path for path, name in zip(beside, names) if name not in known], names


def said_of(
    arrived: Arrived, chosen: Mapping, unexpected: Sequence[str], lock: Mapping
) -> Iterator[str]:
    """What is there beside what is taken in, for a person to know."""
    others = [path for path in sorted(arrived.files) if path.rpartition("/")[2] in chosen]
    others = [path for path in others if path not in chosen.values()]
    if others:
        yield f"also there, and not taken in: {', '.join(others)}"
    if unexpected:
        what = "new beside them" if "beside" in lock["original"] else "also there, beside them"
        more = f" and {len(unexpected) - 10} more" if len(unexpected) > 10 else ""
        yield f"{what}, and not taken in: {', '.join(unexpected[:10])}{more}"


def needs(arrived: Arrived, chosen: Mapping, scripts: Mapping[str, bytes]) -> Iterator[Problem]:
    """A script that imports what lies beside it does not run alone, and what is built has to."""
    for name, source in scripts.items():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue  # said already
        prefix = "".join(chosen[name].rpartition("/")[:2])
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module] if node.module else [alias.name for alias in node.names]
            for module in modules:
                top = prefix + module.partition(".")[0]
                found = [
                    path for path in arrived.paths if path in (f"{top}.py", f"{top}/__init__.py")
                ]
                if found:
                    message = (
                        f"imports {module}, which lies beside it and is not taken in: {found[0]}"
                    )
                    hint = "What is built has to run alone: upstream/lock.json and the patches have to learn of it."
                    yield Problem(
                        message, file=chosen[name], line=node.lineno, hint=printable(hint)
                    )


def sha256(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()
