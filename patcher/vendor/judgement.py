"""Another upstream: what has changed in it, what every series says to it, and what taking it in would write.

Pure but for the patches, which it imports: `judge` knows no paths but those inside the source, and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patcher.build import upstream, verdicts
from patcher.build.project import Project, Request
from patcher.core import engine, unified
from patcher.core.engine import Outcome, Verdict
from patcher.core.patch import Patch
from patcher.core.problem import Problem
from patcher.vendor import compare
from patcher.vendor.arrived import Arrived
from patcher.vendor.compare import Present


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


def judge(
    project: Project, arrived: Arrived, present: Present, folder: str | None = None
) -> Judgement:
    """Compare, and render every series on the new text.  Raises Problem(s) where the source cannot be used at all."""
    chosen, others = compare.choose(arrived, present.lock, folder)
    scripts = {name: arrived.files[path] for name, path in chosen.items()}
    notes, origin_problems = compare.origin(arrived, scripts, present.lock)
    notes += [*compare.changes(chosen, scripts, present.scripts), *arrived.notes]
    text, licence_notes, licence_problems = compare.licence(arrived, chosen, present)
    unexpected, beside = compare.beside(arrived, chosen, present.lock)
    tables, stale, crashes, facts = _verdicts(project, chosen, scripts, present)
    others = [*origin_problems, *others, *crashes]
    stale += list(compare.needs(arrived, chosen, scripts))
    complete = not crashes and chosen.keys() == present.lock["files"].keys()
    files = _files(arrived, scripts, present, text, beside, tables) if complete else {}
    facts = {
        "source": {
            "kind": arrived.kind,
            "origin": arrived.origin,
            "commit": arrived.commit,
            "date": arrived.date,
        },
        "pinned": compare.is_pinned(scripts, present.lock),
        "files": {
            name: compare.fact(chosen[name], scripts[name], present.scripts.get(name))
            for name in chosen
        },
        "licence": compare.kind_of(text) if text is not None else None,
        "unexpected": unexpected,
        **facts,
    }
    notes += [*licence_notes, *compare.said_of(arrived, chosen, unexpected, present.lock)]
    notes = [verdicts.printable(note) for note in notes]
    return Judgement(notes, tables, stale, licence_problems, others, files, facts)


# The verdicts


def _verdicts(project: Project, chosen: Mapping, scripts: Mapping[str, bytes], present: Present):
    """Outcomes by series, what is stale or obsolete, each with the series that say so, what failed, and more facts."""
    tables: dict[str, list[Outcome]] = {}
    patches: dict[str, dict[str, Patch]] = {}
    failed: dict[str, Problem] = {}
    support = project.support()
    for series in project.all_series():
        patches[series] = {patch.slug(): patch for patch in project.patches_of(Request(series))}
        for patch in patches[series].values():
            for name in sorted(patch.sites.keys() - present.lock["files"].keys()):
                message = f"names a file that is not in upstream/lock.json: {name}"
                failed.setdefault(
                    f"{patch.slug()} {name}", Problem(message, file=f"patches/{patch.slug()}.py")
                )
        tables[series] = []
        for name, source in scripts.items():
            tables[series] += _outcomes(
                project, chosen, name, source, [*patches[series].values()], support, failed
            )
    texts = verdicts.Texts(scripts, present.scripts)
    problems, candidates = verdicts.problems(project, tables, patches, chosen, texts)
    return tables, problems, list(failed.values()), {"candidates": candidates}


def _outcomes(
    project: Project,
    chosen: Mapping,
    name: str,
    source: bytes,
    patches,
    support: Mapping[str, bytes],
    failed: dict,
) -> Sequence[Outcome]:
    place = chosen[name]
    try:
        return engine.render(name, source, patches, support).outcomes
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


# What is written


def what_check_says(judged: Judgement) -> str:
    """What `check`, `apply` and the tests will say when this has been taken in."""
    said = []
    for series, outcomes in judged.tables.items():
        counts = {
            v: sorted({o.patch for o in outcomes if o.verdict is v})
            for v in (Verdict.STALE, Verdict.OBSOLETE)
        }
        words = [
            f"{verdict.value} {', '.join(names)}" for verdict, names in counts.items() if names
        ]
        if words:
            then = (
                "and `apply` writes nothing"
                if counts[Verdict.STALE]
                else "while `apply` writes the build"
            )
            said.append(f"of series {series} {'; '.join(words)}, {then}")
    if said:
        return f"`check` will now exit with 1: {'. '.join(said)}."
    return "Run `python -m patcher apply`, for `check` says that upstream has changed, and then the tests."


def _files(
    arrived: Arrived,
    scripts: Mapping[str, bytes],
    present: Present,
    licence: bytes | None,
    beside: list[str],
    tables: Mapping[str, Sequence[Outcome]],
) -> dict[str, bytes]:
    """The scripts, the licence and the lock that names them."""
    lock = {key: value for key, value in present.lock.items() if key != "stale"}
    lock["files"] = {name: upstream.entry(scripts[name]) for name in sorted(scripts)}
    if stale := {
        o.patch for outcomes in tables.values() for o in outcomes if o.verdict is Verdict.STALE
    }:
        lock["stale"] = sorted(stale)
    if licence is not None:
        lock["licence"] = compare.kind_of(licence)
    # Of a copy without a commit nothing more is known, unless it is one that is known.
    if arrived.commit or not (compare.is_pinned(scripts, lock) or scripts == present.scripts):
        lock["original"] = {
            "repository": arrived.repository or present.lock["original"]["repository"],
            "commit": arrived.commit or compare.UNKNOWN,
            **({"date": arrived.date} if arrived.date else {}),
            "licence": lock["licence"],
            "files": {
                name: {"sha256": compare.sha256(source), "lines": len(unified.lines(source))}
                for name, source in sorted(scripts.items())
            },
        }
    if arrived.kind != "folder":
        lock["original"] = {**lock["original"], "beside": beside}
    files = {**scripts, "lock.json": json.dumps(lock, indent=1).encode() + b"\n"}
    return {**files, "LICENSE": licence} if licence is not None else files
