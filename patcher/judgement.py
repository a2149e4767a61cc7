"""Another upstream: what has changed in it, what every series says to it, and what taking it in would write.

Pure but for the patches, which it imports: `judge` knows no paths but those inside the source, and writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patcher import arrival, build, engine, nearest, unified, upstream
from patcher.arrival import Present
from patcher.engine import Outcome, Verdict
from patcher.patch import Patch
from patcher.problem import Problem
from patcher.project import Project, Request
from patcher.sources import Arrived


@dataclass(frozen=True)
class Judgement:
    """`files` is what `upstream/` would hold, empty where that cannot be; `notes` come first of what is said.

    Of the problems, those in `stale` and `licence` are for a maintainer to decide, all others stand in the way.
    """

    notes: Sequence[str]
    tables: Mapping[str, Sequence[Outcome]]
    stale: Sequence[Problem]
    licence: Sequence[Problem]
    others: Sequence[Problem]
    files: Mapping[str, bytes]
    facts: Mapping[str, object]


def judge(project: Project, arrived: Arrived, present: Present, folder: str | None = None) -> Judgement:
    """Compare, and render every series on the new text.  Raises Problem(s) where the source cannot be used at all."""
    chosen, others = arrival.choose(arrived, present.lock, folder)
    scripts = {name: arrived.files[path] for name, path in chosen.items()}
    notes, origin_problems = arrival.origin(arrived, scripts, present.lock)
    notes += [*arrival.changes(chosen, scripts, present.scripts), *arrived.notes]
    text, licence_notes, licence_problems = arrival.licence(arrived, chosen, present)
    unexpected, beside = arrival.beside(arrived, chosen, present.lock)
    tables, stale, crashes, facts = _verdicts(project, chosen, scripts, present)
    others = [*origin_problems, *others, *crashes]
    stale += list(arrival.needs(arrived, chosen, scripts))
    complete = not crashes and chosen.keys() == present.lock["files"].keys()
    files = _files(arrived, scripts, present, text, beside) if complete else {}
    facts = {
        "source": {"kind": arrived.kind, "origin": arrived.origin, "commit": arrived.commit, "date": arrived.date},
        "pinned": arrival.is_pinned(scripts, present.lock),
        "files": {name: arrival.fact(chosen[name], scripts[name], present.scripts.get(name)) for name in chosen},
        "licence": arrival.kind_of(text) if text is not None else None,
        "unexpected": unexpected,
        **facts,
    }
    notes += [*licence_notes, *arrival.said_of(arrived, chosen, unexpected, present.lock)]
    return Judgement([arrival.printable(note) for note in notes], tables, stale, licence_problems, others, files, facts)


# The verdicts


def _verdicts(project: Project, chosen: Mapping, scripts: Mapping[str, bytes], present: Present):
    """Outcomes by series, what is stale or obsolete, each with the series that say so, what failed, and more facts."""
    tables: dict[str, list[Outcome]] = {}
    said: dict[tuple, list[str]] = {}  # what a series says of a patch on a file, and which series
    patches: dict[tuple, tuple[Outcome, Patch]] = {}
    failed: dict[str, Problem] = {}
    for series in project.all_series():
        series_patches = project.patches_of(Request(series))
        by_name = {patch.slug(): patch for patch in series_patches}
        for patch in series_patches:
            for name in sorted(patch.sites.keys() - present.lock["files"].keys()):
                message = f"names a file that is not in upstream/lock.json: {name}"
                failed.setdefault(f"{patch.slug()} {name}", Problem(message, file=f"patches/{patch.slug()}.py"))
        tables[series] = []
        for name, source in scripts.items():
            for outcome in _outcomes(project, name, chosen[name], source, series_patches, failed):
                tables[series].append(outcome)
                found = tuple(sorted(outcome.found.items()))
                key = (outcome.patch, outcome.file, outcome.verdict, found, outcome.detail)
                said.setdefault(key, []).append(series)
                patches.setdefault(key, (outcome, by_name[outcome.patch]))
    texts = _Texts(scripts, present.scripts)
    problems, candidates = [], []
    for key, (outcome, patch) in patches.items():
        place = chosen[outcome.file]
        if outcome.verdict is Verdict.OBSOLETE:
            problems.append(_obsolete(project, outcome, said[key], place, tables))
        elif outcome.verdict is Verdict.STALE:
            found = texts.findings(outcome.file, patch)
            problems.append(_stale(outcome, said[key], place, found, texts.said_of(outcome, patch)))
            candidates += [_candidate(outcome, said[key], place, finding) for finding in found]
    return tables, problems, list(failed.values()), {"candidates": candidates}


def _outcomes(project: Project, name: str, place: str, source: bytes, patches, failed: dict) -> Sequence[Outcome]:
    try:
        return engine.render(name, source, patches).outcomes
    except Problem as problem:
        if not problem.file.startswith("patches/"):
            problem.file = place
        failed.setdefault(str(problem), problem)
    except Exception as error:
        blamed = project.blame(error, f"crashed on {place}")
        if blamed is None:
            raise
        failed.setdefault(str(blamed), blamed)
    return ()


class _Texts:
    """The scripts of old and new with their positions, each made when it is first asked for."""

    def __init__(self, scripts: Mapping[str, bytes], present: Mapping[str, bytes]):
        self._sources = {"new": scripts, "old": present}
        self._made: dict[tuple[str, str], nearest.Script] = {}

    def findings(self, name: str, patch: Patch) -> list[nearest.Finding]:
        try:
            return nearest.findings(self._script("old", name), self._script("new", name), patch)
        except (KeyError, Problem):  # upstream/ lacks it, or holds what cannot be read: there is nothing to compare
            return []

    def said_of(self, outcome: Outcome, patch: Patch) -> list[str]:
        """Where not the new text but the patches before it are why a patch does not find what it states."""
        if outcome.found == outcome.expected:
            return []
        if self._script("new", outcome.file).sites(patch) == outcome.expected:
            return ["By itself it finds all that it is for: a patch before it is in the way."]
        with contextlib.suppress(KeyError, Problem):
            if self._script("old", outcome.file).sites(patch) != outcome.expected:
                return ["It edits what patches before it write: look at those first."]
        return []

    def _script(self, age: str, name: str) -> nearest.Script:
        if (age, name) not in self._made:
            self._made[age, name] = nearest.Script(name, self._sources[age][name])
        return self._made[age, name]


def _stale(outcome: Outcome, series, place: str, found: Sequence[nearest.Finding], more: list[str]) -> Problem:
    expected, counted = build.count(outcome.expected), build.count(outcome.found)
    message = f"{outcome.patch}: stale in series {', '.join(series)}: expected {expected}, found {counted}"
    message += f"; {outcome.detail}" if outcome.detail else ""
    line = next((finding.new.line for finding in found if finding.new), outcome.line)
    excerpt = nearest.shown(found, f"upstream/{outcome.file}", place)
    advice = f"Adapt patches/{outcome.patch}.py to this text, or take it out of the series in patches/__init__.py."
    hint = "\n".join(arrival.printable(line) for line in [*excerpt, *more, advice])
    return Problem(arrival.printable(message), file=place, line=line, hint=hint)


def _obsolete(project: Project, outcome: Outcome, series: Sequence[str], place: str, tables: Mapping) -> Problem:
    """With what to delete: patch and lines, or less, where another file or another series still needs the patch."""
    name = outcome.patch
    message = f"{name}: obsolete in series {', '.join(series)}: upstream has this edit now"
    needed = [(s, o.file) for s in tables for o in tables[s] if o.patch == name and o.verdict is not Verdict.OBSOLETE]
    other_series = sorted({s for s, file in needed if file == outcome.file})
    other_files = sorted({file for _, file in needed})
    entries = _entries(project, name)
    if other_series:
        only = f"Take it out of series {', '.join(series)} alone: {', '.join(other_series)} still needs it."
        hint = "\n".join([only, *entries])
    elif other_files:
        hint = (
            f"Take {outcome.file} out of `sites` in patches/{name}.py; it is still needed in {', '.join(other_files)}."
        )
    else:
        hint = "\n".join([f"Delete patches/{name}.py and, of the series:", *entries])
    return Problem(message, file=place, hint=hint)


def _entries(project: Project, name: str) -> list[str]:
    """The lines of the series that name a patch."""
    lines = (project.patches / "__init__.py").read_text(encoding="utf-8").split("\n")
    entry = re.compile(rf"""["']{re.escape(name)}["']\s*:""")
    return [f"- patches/__init__.py:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if entry.search(line)]


def _candidate(outcome: Outcome, series, place: str, finding: nearest.Finding) -> dict:
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
        "fate": finding.fate.value,
        "old": plain(finding.old, f"upstream/{outcome.file}"),
        "new": plain(finding.new, place),
    }


# What is written


def what_check_says(judged: Judgement) -> str:
    """What `check`, `apply` and the tests will say when this has been taken in."""
    said = []
    for series, outcomes in judged.tables.items():
        counts = {v: sorted({o.patch for o in outcomes if o.verdict is v}) for v in (Verdict.STALE, Verdict.OBSOLETE)}
        words = [f"{verdict.value} {', '.join(names)}" for verdict, names in counts.items() if names]
        if words:
            then = "and `apply` writes nothing" if counts[Verdict.STALE] else "while `apply` writes the build"
            said.append(f"of series {series} {'; '.join(words)}, {then}")
    if said:
        return f"`check` will now exit with 1: {'. '.join(said)}."
    return "Run `python -m patcher apply`, for `check` says that upstream has changed, and then the tests."


def _files(
    arrived: Arrived, scripts: Mapping[str, bytes], present: Present, licence: bytes | None, beside: list[str]
) -> dict[str, bytes]:
    """The scripts, the licence and the lock that names them."""
    lock = {**present.lock, "files": {name: upstream.entry(scripts[name]) for name in sorted(scripts)}}
    if licence is not None:
        lock["licence"] = arrival.kind_of(licence)
    # Of a copy without a commit nothing more is known, unless it is one that is known.
    if arrived.commit or not (arrival.is_pinned(scripts, lock) or scripts == present.scripts):
        lock["original"] = {
            "repository": arrived.repository or present.lock["original"]["repository"],
            "commit": arrived.commit or arrival.UNKNOWN,
            **({"date": arrived.date} if arrived.date else {}),
            "licence": lock["licence"],
            "files": {
                name: {"sha256": arrival.sha256(source), "lines": len(unified.lines(source))}
                for name, source in sorted(scripts.items())
            },
        }
    if arrived.kind != "folder":
        lock["original"] = {**lock["original"], "beside": beside}
    files = {**scripts, "lock.json": json.dumps(lock, indent=1).encode() + b"\n"}
    return {**files, "LICENSE": licence} if licence is not None else files
