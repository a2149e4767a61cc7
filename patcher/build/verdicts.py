"""What is said of a patch that is not CLEAN: by `apply`, `check`, `diff` and `vendor` alike."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence

from patcher.build import nearest, upstream
from patcher.build.project import Project
from patcher.core.engine import Outcome, Verdict
from patcher.core.patch import Patch
from patcher.core.problem import Problem


def problems(
    project: Project,
    tables: Mapping[str, Sequence[Outcome]],
    patches: Mapping[str, Mapping[str, Patch]],
    places: Mapping[str, str],
    texts: Texts,
) -> tuple[list[Problem], list[dict]]:
    """A finding for each thing that series say of a patch on a file, and the nearest code as data.

    `tables` and `patches` are by series; `places` tells the name under which a file is shown.
    """
    said: dict[tuple, list[str]] = {}  # what a series says of a patch on a file, and which series
    first: dict[tuple, tuple[Outcome, Patch]] = {}
    for series, outcomes in tables.items():
        for outcome in outcomes:
            key = (
                outcome.patch,
                outcome.file,
                outcome.verdict,
                tuple(sorted(outcome.found.items())),
                outcome.detail,
            )
            said.setdefault(key, []).append(series)
            first.setdefault(key, (outcome, patches[series][outcome.patch]))
    found, candidates, lock = [], [], upstream.read(project.upstream)
    for key, (outcome, patch) in first.items():
        place = places[outcome.file]
        of_series = f" in series {', '.join(said[key])}" if len(tables) > 1 else ""
        if outcome.verdict is Verdict.OBSOLETE:
            found.append(_obsolete(project, outcome, said[key], of_series, place, tables))
        elif outcome.verdict is Verdict.STALE:
            near = [] if outcome.refused else texts.traces(outcome.file, patch)
            more = [
                *texts.said_of(outcome, patch),
                _advice(outcome, texts.is_locked(outcome.file, lock), lock),
            ]
            found.append(_stale(outcome, of_series, place, near, more))
            candidates += [_candidate(outcome, said[key], place, trace) for trace in near]
    return found, candidates


class Texts:
    """The scripts of old and new with their positions, each made when it is first asked for."""

    def __init__(self, scripts: Mapping[str, bytes], present: Mapping[str, bytes]):
        self._sources = {"new": scripts, "old": present}
        self._made: dict[tuple[str, str], nearest.Statements] = {}

    def is_locked(self, name: str, lock: Mapping) -> bool:
        """Whether the new text is that of which the lock says that it is in `upstream/`."""
        entry = lock["files"].get(name)
        return (
            entry is not None
            and hashlib.sha256(self._sources["new"][name]).hexdigest() == entry["sha256"]
        )

    def traces(self, name: str, patch: Patch) -> list[nearest.Trace]:
        try:
            return nearest.traces(
                self._statements("old", name), self._statements("new", name), patch
            )
        except (
            KeyError,
            Problem,
        ):  # upstream/ lacks it, or holds what cannot be read: there is nothing to compare
            return []

    def said_of(self, outcome: Outcome, patch: Patch) -> list[str]:
        """Where not the new text but the patches before it are why a patch does not find what it states."""
        if outcome.refused or outcome.found == outcome.expected:
            return []
        if self._statements("new", outcome.file).sites(patch) == outcome.expected:
            return ["By itself it finds all that it is for: a patch before it is in the way."]
        with contextlib.suppress(KeyError, Problem):
            if self._statements("old", outcome.file).sites(patch) != outcome.expected:
                return ["It edits what patches before it write: look at those first."]
        return []

    def _statements(self, age: str, name: str) -> nearest.Statements:
        if (age, name) not in self._made:
            self._made[age, name] = nearest.Statements(name, self._sources[age][name])
        return self._made[age, name]


def count(sites: Mapping[str, int]) -> str:
    total = sum(sites.values())
    where = ", ".join(f"{n} in {function}" for function, n in sorted(sites.items()))
    return f"{total} site{'' if total == 1 else 's'}" + (f" ({where})" if where else "")


def _stale(
    outcome: Outcome, of_series: str, place: str, found: Sequence[nearest.Trace], more: list[str]
) -> Problem:
    what = f"expected {count(outcome.expected)}, found {count(outcome.found)}"
    what += f"; {outcome.detail}" if outcome.detail else ""
    if outcome.refused:
        what = f"refused: {outcome.detail}"
    line = next((trace.new.line for trace in found if trace.new), outcome.line)
    excerpt = nearest.shown(found, f"upstream/{outcome.file}", place)
    hint = "\n".join(printable(line) for line in [*excerpt, *more])
    return Problem(
        printable(f"{outcome.patch}: stale{of_series}: {what}"), file=place, line=line, hint=hint
    )


def _advice(outcome: Outcome, is_locked: bool, lock: Mapping) -> str:
    """What to do; a text on which the patch was clean when it was taken in is no reason to adapt the patch."""
    if is_locked and outcome.patch not in lock.get("stale", ()):
        file = f"upstream/{outcome.file}"
        return f"{file} is as it was taken in: see what has changed in patches/ and patcher/, with `git diff`."
    return f"Adapt patches/{outcome.patch}.py to this text, or take it out of the series in patches/__init__.py."


def _obsolete(
    project: Project,
    outcome: Outcome,
    series: Sequence[str],
    of_series: str,
    place: str,
    tables: Mapping,
) -> Problem:
    """With what to delete: patch and lines, or less, where another file or another series still needs the patch."""
    name = outcome.patch
    message = f"{name}: obsolete{of_series}: upstream has this edit now"
    needed = [
        (s, o.file)
        for s in tables
        for o in tables[s]
        if o.patch == name and o.verdict is not Verdict.OBSOLETE
    ]
    other_series = sorted({s for s, file in needed if file == outcome.file})
    other_files = sorted({file for _, file in needed})
    entries = _entries(project, name)
    if other_series:
        only = f"Take it out of series {', '.join(series)} alone: {', '.join(other_series)} still needs it."
        hint = "\n".join([only, *entries])
    elif other_files:
        hint = f"Take {outcome.file} out of `sites` in patches/{name}.py; it is still needed in {', '.join(other_files)}."
    else:
        hint = "\n".join([f"Delete patches/{name}.py and, of the series:", *entries])
    return Problem(message, file=place, hint=hint)


def _entries(project: Project, name: str) -> list[str]:
    """The lines of the series that name a patch."""
    lines = (project.patches / "__init__.py").read_text(encoding="utf-8").split("\n")
    entry = re.compile(rf"""["']{re.escape(name)}["']\s*:""")
    return [
        f"- patches/__init__.py:{n}: {line.strip()}"
        for n, line in enumerate(lines, 1)
        if entry.search(line)
    ]


def _candidate(outcome: Outcome, series: Sequence[str], place: str, trace: nearest.Trace) -> dict:
    def plain(statement: nearest.Statement | None, file: str) -> dict | None:
        return statement and {
            "file": file,
            "line": statement.line,
            "function": statement.function,
            "text": statement.text,
        }

    return {
        "patch": outcome.patch,
        "file": outcome.file,
        "series": list(series),
        "fate": trace.fate.value,
        "old": plain(trace.old, f"upstream/{outcome.file}"),
        "new": plain(trace.new, place),
    }


def printable(text: str) -> str:
    """A line with text of an upstream, which may hold anything: it stays one line, and moves no cursor."""
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text
    )
