"""What `apply`, `check`, `diff` and `vendor` say of a patch that is not CLEAN."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from patcher.build import nearest, upstream
from patcher.build.project import Project
from patcher.core.patch import Patch
from patcher.core.problem import Problem
from patcher.core.truth import FAULT, Outcome, Verdict

Tables = Mapping[str, Sequence[Outcome]]  # by series


def problems(
    project: Project,
    tables: Tables,
    patches: Mapping[str, Mapping[str, Patch]],
    places: Mapping[str, str],
    texts: Texts,
    code_if_obsolete: int = 1,
) -> tuple[list[Problem], list[dict[str, Any]]]:
    """A finding for each thing that series say of a patch on a file; the nearest code as data.

    `tables` and `patches` are by series; `places` tells the name under which a file is shown.
    """
    said: dict[tuple[object, ...], list[tuple[str, Outcome]]] = {}
    for series, outcomes in tables.items():
        for o in outcomes:
            key = (o.patch, o.file, o.verdict, tuple(sorted(o.found.items())), o.detail)
            said.setdefault(key, []).append((series, o))
    found, candidates, lock = [], [], upstream.read(project.upstream)
    for same in said.values():
        series_of, (first, outcome) = [series for series, _ in same], same[0]
        place, patch = places[outcome.file], patches[first][outcome.patch]
        where = f" in series {', '.join(series_of)}" if len(tables) > 1 else ""
        if outcome.verdict is Verdict.OBSOLETE:
            message = f"{outcome.patch}: obsolete{where}: upstream has this edit now"
            hint = _what_to_delete(project, outcome, series_of, tables)
            kind = outcome.verdict.value
            found.append(Problem(message, file=place, hint=hint, code=code_if_obsolete, kind=kind))
        elif outcome.verdict is Verdict.STALE:
            near = [] if outcome.refused else texts.traces(outcome.file, patch)
            advice = _advice(outcome, texts.is_locked(outcome.file, lock), lock)
            more = [*texts.said_of(outcome, patch), advice]
            found.append(_stale(outcome, where, place, near, more))
            candidates += [_candidate(outcome, series_of, place, trace) for trace in near]
    return found, candidates


class Texts:
    """The scripts of old and new with their positions, each made when it is first asked for."""

    def __init__(self, scripts: Mapping[str, bytes], present: Mapping[str, bytes]):
        self._sources = {"new": scripts, "old": present}
        self._made: dict[tuple[str, str], nearest.Statements] = {}

    def is_locked(self, name: str, lock: Mapping[str, Any]) -> bool:
        """Whether the new text is the one that the lock names."""
        digest = hashlib.sha256(self._sources["new"][name]).hexdigest()
        return name in lock["files"] and digest == str(lock["files"][name]["sha256"])

    def traces(self, name: str, patch: Patch) -> list[nearest.Trace]:
        try:
            old, new = self._statements("old", name), self._statements("new", name)
            return nearest.traces(old, new, patch)
        except (KeyError, Problem):  # upstream/ lacks it, or it cannot be read
            return []

    def said_of(self, outcome: Outcome, patch: Patch) -> list[str]:
        """What to say if the patches before it, not the new text, are why a patch is stale."""
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
    outcome: Outcome, where: str, place: str, found: Sequence[nearest.Trace], more: list[str]
) -> Problem:
    what = f"refused: {outcome.detail}" if outcome.refused else outcome.detail
    if not outcome.refused and outcome.found != outcome.expected:
        counts = f"expected {count(outcome.expected)}, found {count(outcome.found)}"
        what = f"{counts}; {what}" if what else counts
    message = printable(f"{outcome.patch}: stale{where}: {what}")
    line = next((trace.new.line for trace in found if trace.new), outcome.line)
    hint = [*nearest.shown(found, f"upstream/{outcome.file}", place), *more]
    said = "\n".join(map(printable, hint))
    return Problem(message, file=place, line=line, hint=said, kind=outcome.verdict.value)


def _advice(outcome: Outcome, is_locked: bool, lock: Mapping[str, Any]) -> str:
    """What to do.  The patch was clean on the text that was taken in: that is not the reason."""
    patch, file = f"patches/{outcome.patch}.py", f"upstream/{outcome.file}"
    if outcome.detail.startswith(FAULT):
        return f"Mend {patch}: what it edits has to look done, and not to be edited again."
    if is_locked and outcome.patch not in lock.get("stale", ()):
        changed = "see what has changed in patches/ and patcher/, with `git diff`"
        return f"{file} is as it was taken in: {changed}."
    return f"Adapt {patch} to this text, or take it out of the series in patches/__init__.py."


def _what_to_delete(
    project: Project, outcome: Outcome, series: Sequence[str], tables: Tables
) -> str:
    """The patch and its lines; or less, if another file or another series still needs it."""
    name, file = outcome.patch, outcome.file
    clean = [(s, o.file) for s in tables for o in tables[s] if o.patch == name and not _is_done(o)]
    other_series = ", ".join(sorted({s for s, needed in clean if needed == file}))
    other_files = ", ".join(sorted({needed for _, needed in clean}))
    if other_files and not other_series:
        still = f"it is still needed in {other_files}"
        return f"Take {file} out of `sites` in patches/{name}.py; {still}."
    first = f"Delete patches/{name}.py and its entry in the series:"
    if other_series:
        first = f"Take it out of series {', '.join(series)} alone: {other_series} still needs it."
    lines = (project.patches / "__init__.py").read_text(encoding="utf-8").split("\n")
    entry = re.compile(rf"""["']{re.escape(name)}["']\s*:""")
    named = [(n, line.strip()) for n, line in enumerate(lines, 1) if entry.search(line)]
    return "\n".join([first, *(f"- patches/__init__.py:{n}: {line}" for n, line in named)])


def _is_done(outcome: Outcome) -> bool:
    return outcome.verdict is Verdict.OBSOLETE


def _candidate(
    outcome: Outcome, series: Sequence[str], place: str, trace: nearest.Trace
) -> dict[str, Any]:
    def plain(statement: nearest.Statement | None, file: str) -> dict[str, Any] | None:
        if statement is None:
            return None
        place = {"file": file, "line": statement.line, "function": statement.function}
        return {**place, "text": statement.text}

    return {
        "patch": outcome.patch,
        "file": outcome.file,
        "series": list(series),
        "fate": trace.fate,
        "old": plain(trace.old, f"upstream/{outcome.file}"),
        "new": plain(trace.new, place),
    }


def printable(text: str) -> str:
    """Text of an upstream, which may hold anything, as one line that moves no cursor."""
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text
    )
