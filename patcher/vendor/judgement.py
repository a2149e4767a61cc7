"""Another upstream: what is new, what every series says to it, and what `vendor` would write.

Pure but for the patches, which it imports: it knows no paths but those inside the source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from patcher.build import upstream, verdicts
from patcher.build.project import Project, Request
from patcher.core import engine, unified
from patcher.core.patch import Patch
from patcher.core.problem import Problem
from patcher.core.truth import Outcome, Verdict
from patcher.vendor import compare
from patcher.vendor.arrived import Arrived

Tables = Mapping[str, Sequence[Outcome]]  # by series


@dataclass(frozen=True)
class Judgement:
    """`notes` come first of what is said; `files` is what `upstream/` would hold.

    Of the problems, those in `stale` and `licence` are for a maintainer to decide.  All others
    stand in the way, and then there are no `files`.
    """

    notes: Sequence[str]
    tables: Tables
    stale: Sequence[Problem]
    licence: Sequence[Problem]
    others: Sequence[Problem]
    files: Mapping[str, bytes]
    facts: Mapping[str, object]


def judge(
    project: Project, arrived: Arrived, present: compare.Present, folder: str | None = None
) -> Judgement:
    """Compare, and render every series on the new text.

    Raises Problem(s) if the source cannot be used at all.
    """
    new = compare.Comparison(arrived, present, folder)
    tables, patches, failed = _render(project, new)
    texts = verdicts.Texts(new.scripts, present.scripts)
    stale, candidates = verdicts.problems(project, tables, patches, new.chosen, texts)
    others = [*new.problems, *failed]
    return Judgement(
        notes=[verdicts.printable(note) for note in new.notes],
        tables=tables,
        stale=[*stale, *new.needs()],
        licence=new.decisions,
        others=others,
        files={} if others else _files(new, tables),
        facts={**new.facts, "candidates": candidates},
    )


def _render(
    project: Project, new: compare.Comparison
) -> tuple[Tables, dict[str, dict[str, Patch]], Sequence[Problem]]:
    """Outcomes and patches by series, and what has failed, each once."""
    tables: dict[str, list[Outcome]] = {}
    patches: dict[str, dict[str, Patch]] = {}
    failed: dict[str, Problem] = {}
    support = project.support()

    def fail(problem: Problem) -> None:
        failed.setdefault(str(problem), problem)

    for series in project.all_series():
        patches[series] = {patch.slug(): patch for patch in project.patches_of(Request(series))}
        for slug, patch in patches[series].items():
            for name in sorted(patch.sites.keys() - new.lock["files"].keys()):
                message = f"names a file that is not in upstream/lock.json: {name}"
                fail(Problem(message, file=f"patches/{slug}.py"))
        tables[series] = []
        for name, source in new.scripts.items():
            ours = [*patches[series].values()]
            try:
                tables[series] += engine.render(name, source, ours, support).outcomes
            except Problem as problem:
                if not problem.file.startswith("patches/"):
                    problem.file = new.chosen[name]
                fail(problem)
            except Exception as error:
                blamed = project.blame(error, f"crashed on {new.chosen[name]}")
                if blamed is None:
                    raise
                fail(blamed)
    return tables, patches, [*failed.values()]


def what_check_says(judged: Judgement) -> str:
    """What `check`, `apply` and the tests will say when this has been taken in."""
    said = []
    for series, outcomes in judged.tables.items():
        stale, obsolete = (
            ", ".join(sorted({o.patch for o in outcomes if o.verdict is verdict}))
            for verdict in (Verdict.STALE, Verdict.OBSOLETE)
        )
        words = [f"stale {stale}"] if stale else []
        words += [f"obsolete {obsolete}"] if obsolete else []
        then = "and `apply` writes nothing" if stale else "while `apply` writes the build"
        if words:
            said.append(f"of series {series} {'; '.join(words)}, {then}")
    if said:
        return f"`check` will now exit with 1: {'. '.join(said)}."
    then = "for `check` says that upstream has changed, and then the tests"
    return f"Run `python -m patcher apply`, {then}."


def _files(new: compare.Comparison, tables: Tables) -> dict[str, bytes]:
    """The scripts, the licence and the lock that names them."""
    scripts, arrived, licence = new.scripts, new.arrived, new.licence
    outcomes = [outcome for series in tables.values() for outcome in series]
    lock = {key: value for key, value in new.lock.items() if key != "stale"}
    lock["files"] = {name: upstream.entry(scripts[name]) for name in sorted(scripts)}
    if stale := sorted({o.patch for o in outcomes if o.verdict is Verdict.STALE}):
        lock["stale"] = stale
    if licence is not None:
        lock["licence"] = compare.kind_of(licence)
    # Of a copy without a commit nothing more is known, unless it is one that is known.
    if arrived.commit or not (new.is_pinned or scripts == new.present.scripts):
        lock["original"] = {
            "repository": arrived.repository or new.original["repository"],
            "commit": arrived.commit or compare.UNKNOWN,
            **({"date": arrived.date} if arrived.date else {}),
            "licence": lock["licence"],
            "files": {
                name: {"sha256": compare.sha256(source), "lines": len(unified.lines(source))}
                for name, source in sorted(scripts.items())
            },
        }
    if arrived.kind != "folder":
        lock["original"] = {**lock["original"], "beside": new.beside}
    files = {**scripts, "lock.json": json.dumps(lock, indent=1).encode() + b"\n"}
    return {**files, "LICENSE": licence} if licence is not None else files
