"""How what has arrived from a source differs from `upstream/`.

Pure: it knows no paths but those inside the source.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import basename, dirname
from typing import Any

from patcher.build.verdicts import printable
from patcher.core import unified
from patcher.core.problem import Problem, Problems, UsageError
from patcher.vendor.arrived import Arrived, Wanted

LICENCE = re.compile(r"(LICEN[CS]E|COPYING)(\.(txt|md|rst))?", re.IGNORECASE)
LICENCES = {  # SPDX names and how each begins; the licence is the one whose words come first
    "MIT": "permission is hereby granted free of charge to any person obtaining a copy of this "
    "software and",
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

    lock: Mapping[str, Any]
    scripts: Mapping[str, bytes]
    licence: bytes | None


def wanted(lock: Mapping[str, Any]) -> Wanted:
    """Which files of a source are to be read: those that the lock names, and licences."""

    def is_wanted(path: str) -> bool:
        name = basename(path)
        return name in lock["files"] or bool(LICENCE.fullmatch(name))

    return is_wanted


class Comparison:
    """The scripts that are meant, and what there is to say of them.

    `chosen` has the path of each script in the source, `licence` the text that upstream/LICENSE
    would have.  `notes` are for a person.  `problems` stand in the way of taking it in, but for
    those in `decisions`, which are for a maintainer to decide.

    In the public original the scripts lie at the root, so one there is meant; else there has to be
    only one.  `folder` says where instead.  Raises Problem(s) if none is there, or if one of
    several could be meant.
    """

    def __init__(self, arrived: Arrived, present: Present, folder: str | None = None) -> None:
        self.arrived, self.present = arrived, present
        self.lock, self.original = present.lock, present.lock["original"]
        self.notes: list[str] = []
        self.problems: list[Problem] = []
        self.decisions: list[Problem] = []
        self.chosen = self._choose(folder)
        self.scripts = {name: arrived.files[path] for name, path in self.chosen.items()}
        self.is_pinned = self._compare_with_original()
        files = {name: self._compare(name) for name in self.scripts}
        self.notes += arrived.notes
        self.licence = self._compare_licence()
        self.beside, unexpected = self._look_beside()
        self.facts = {
            "source": {key: getattr(arrived, key) for key in ("kind", "origin", "commit", "date")},
            "pinned": self.is_pinned,
            "files": files,
            "licence": None if self.licence is None else kind_of(self.licence),
            "unexpected": unexpected,
        }

    def _choose(self, folder: str | None) -> dict[str, str]:
        origin, paths = self.arrived.origin, sorted(self.arrived.files)
        if folder is not None:
            meant = PurePosixPath(folder.replace("\\", "/").strip("/"))
            paths = [path for path in paths if PurePosixPath(path).parent == meant]
        chosen: dict[str, str] = {}
        several: list[Problem] = []
        for name in sorted(self.lock["files"]):
            found = [path for path in paths if basename(path) == name]
            if name in found or len(found) == 1:
                chosen[name] = name if name in found else found[0]
            elif found:
                message = f"{name} is there {len(found)} times: {', '.join(found)}"
                hint = "Say which folder is meant, with --path."
                several.append(UsageError(message, file=origin, hint=hint))
            else:
                message = f"{name} is not there, but in upstream/lock.json"
                self.problems.append(Problem(message, file=origin, hint=self._alike(name)))
        if several:
            raise Problems(several)
        if not chosen:
            for problem in self.problems:
                problem.code = 2
            raise Problems(self.problems)
        return chosen

    def _alike(self, name: str) -> str:
        names = {basename(path): path for path in self.arrived.paths if path.endswith(".py")}
        alike = [names[close] for close in difflib.get_close_matches(name, names, n=3)]
        if not alike:
            return "Is this the right source?"
        return printable(f"Was it renamed? There is {', '.join(alike)}.")

    def _compare_with_original(self) -> bool:
        """Whether this is the pinned original: said first, and a problem if only the commit is."""
        arrived, commit = self.arrived, self.original["commit"]
        pinned = self.original.get("files", {})

        def differing(scripts: Mapping[str, bytes]) -> str:
            sums = {name: sha256(source) for name, source in scripts.items()}
            return ", ".join(n for n in sorted(pinned) if sums.get(n) != pinned[n]["sha256"])

        others = differing(self.scripts)
        is_pinned = bool(pinned) and not others
        is_that_commit = bool(arrived.commit) and arrived.commit.startswith(commit)
        if is_pinned:
            first = f"the pinned original (commit {commit})"
            if arrived.commit and not is_that_commit:
                first += "; the scripts are the same in the commit at hand"
        else:
            unix = {name: _unix(source) for name, source in self.scripts.items()}
            is_converted = bool(pinned) and not differing(unix)
            first = "the pinned original, but for its line endings"
            first = first if is_converted else "not the pinned original"
            first += f" (commit {commit}): other sha256 of {others}"
            if is_that_commit and pinned and not is_converted:
                message = f"it says that it is the pinned commit {commit}, but these files are not "
                message += f"that commit's: {others}"
                hint = "Do not take it in before you know why. Fetch it again, best with git."
                self.problems.append(Problem(message, file=arrived.origin, hint=hint))
        where = f"{arrived.kind} {arrived.origin}"
        where += f", commit {arrived.commit}" if arrived.commit else ""
        where += f" of {arrived.date}" if arrived.date else ""
        self.notes += [first, where]
        ours, repository = self.original["repository"], arrived.repository
        if not is_pinned and repository and _bare(repository) != _bare(ours):
            self.notes.append(f"another repository than that of the lock, {ours}")
        return is_pinned

    def _compare(self, name: str) -> dict[str, object]:
        """What is new in a script, as data; it is noted in words, too."""
        path, source, before = self.chosen[name], self.scripts[name], self.present.scripts.get(name)
        old, new = (unified.lines(_unix(text)) for text in (before or b"", source))
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        same = sum(block.size for block in matcher.get_matching_blocks())
        added, removed = len(new) - same, len(old) - same
        shown = name if path == name else f"{name} (at {path})"
        if before == source:
            self.notes.append(f"{shown}: as in upstream/, sha256 {sha256(source)}")
        elif before is None:
            self.notes.append(f"{shown}: {len(source)} bytes, sha256 {sha256(source)}")
        else:
            size, length = f"{len(before)} -> {len(source)}", f"{len(old)} -> {len(new)}"
            self.notes += [
                f"{shown}: {size} bytes, {length} lines (+{added} -{removed})",
                f"  sha256 {sha256(before)} -> {sha256(source)}",
            ]
            endings = ["CRLF" if b"\r\n" in text else "LF" for text in (before, source)]
            if len(set(endings)) == 2:
                self.notes.append(f"  line endings: {' -> '.join(endings)}")
        return {
            "path": path,
            "sha256": sha256(source),
            "size": len(source),
            "lines": len(new),
            "before": None if before is None else {"sha256": sha256(before), "size": len(before)},
            "added": added,
            "removed": removed,
        }

    def _compare_licence(self) -> bytes | None:
        """The text of the licence beside the scripts, else of that at the root."""
        arrived, present = self.arrived, self.present
        folders = [*map(dirname, self.chosen.values()), ""]
        found = (path for path in sorted(arrived.files) if LICENCE.fullmatch(basename(path)))
        found = (path for path in found if dirname(path) in folders)
        path = min(found, key=lambda path: folders.index(dirname(path)), default=None)
        before = self.lock.get("licence", UNKNOWN)
        if path is None:
            message = f"no licence is there; upstream/LICENSE is {before} and stays as it is"
            if arrived.kind == "folder":  # two scripts that somebody has copied
                self.notes.append(f"licence: {message}")
            else:
                hint = "May these scripts still be passed on?"
                self.decisions.append(Problem(message, file=arrived.origin, hint=hint))
            return None
        text = arrived.files[path]
        kind = kind_of(text)
        if kind != before:
            message = f"the licence has changed from {before} to {kind}"
            hint = "Read it, and take it in with --accept-licence if that is all right."
            self.decisions.append(Problem(message, file=path, hint=hint))
        elif present.licence is not None and present.licence.split() == text.split():
            self.notes.append(f"licence: {kind}, unchanged")
            return present.licence
        else:
            self.notes.append(f"licence: {kind} as before, but another text: {path}")
        return text

    def _look_beside(self) -> tuple[list[str], list[str]]:
        """The names of scripts beside ours, and the paths of those that the lock does not know."""
        ours, folders = set(self.chosen.values()), set(map(dirname, self.chosen.values()))
        others = [path for path in sorted(self.arrived.files) if basename(path) in self.chosen]
        if others := [path for path in others if path not in ours]:
            self.notes.append(f"also there, and not taken in: {', '.join(others)}")
        beside = [p for p in sorted(self.arrived.paths) if p.endswith(".py") and p not in ours]
        beside = [path for path in beside if dirname(path) in folders]
        known = self.original.get("beside", [])
        unexpected = [path for path in beside if basename(path) not in known]
        if unexpected:
            is_known = "beside" in self.original
            what = "new beside them" if is_known else "also there, beside them"
            more = f" and {len(unexpected) - 10} more" if len(unexpected) > 10 else ""
            listed = ", ".join(unexpected[:10]) + more
            self.notes.append(f"{what}, and not taken in: {listed}")
        return [basename(path) for path in beside], unexpected

    def needs(self) -> Iterator[Problem]:
        """Each import of a file that lies beside a script: what is built has to run alone."""
        hint = "Built scripts run alone: upstream/lock.json and the patches have to learn of it."
        for name, source in self.scripts.items():
            try:
                tree = ast.parse(source)
            except (SyntaxError, ValueError):
                continue  # said already
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    modules = [node.module]
                elif isinstance(node, (ast.Import, ast.ImportFrom)):
                    modules = [alias.name for alias in node.names]
                else:
                    continue
                for module in modules:
                    path = self.chosen[name]
                    top = posixpath.join(dirname(path), module.partition(".")[0])
                    for file in {f"{top}.py", f"{top}/__init__.py"} & set(self.arrived.paths):
                        lies = f"which lies beside it and is not taken in: {file}"
                        message = printable(f"imports {module}, {lies}")
                        yield Problem(message, file=path, line=node.lineno, hint=hint)


def kind_of(licence: bytes) -> str:
    """The SPDX name of a licence, as far as its wording tells."""
    words = re.sub(r"[^a-z0-9.]+", " ", licence.decode("utf-8", "replace").lower())
    places = {name: words.find(phrase) for name, phrase in LICENCES.items() if phrase in words}
    return min(places, key=places.__getitem__, default=UNKNOWN)


def sha256(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _bare(url: str) -> str:
    return url.removesuffix("/").removesuffix(".git").lower()


def _unix(source: bytes) -> bytes:
    return source.replace(b"\r\n", b"\n")
