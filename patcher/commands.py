"""What each command does, from a project and a request to a report.

All of them raise Problem(s), and then have changed nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.build import build, export, store, upstream
from patcher.build.manifest import MANIFEST
from patcher.build.project import Project, Request
from patcher.core import unified
from patcher.core.patch import Patch
from patcher.core.problem import Problem, UsageError
from patcher.report import Report, Row

if TYPE_CHECKING:
    from patcher.verify.findings import Check
    from patcher.verify.show import Screen


def apply(project: Project, request: Request, out: Path, overwrite: bool) -> Report:
    _keep_sources(project, out)
    plan = build.plan(project, request)
    if plan.failed:
        return _report("apply", plan, plan.problems, summary=f"{out}: nothing was written")
    changed = build.apply(project, plan, out, overwrite)
    summary = f"wrote {_listed(changed)}" if changed else f"nothing to do, series {request.series}"
    found = _report("apply", plan, plan.problems, changed=changed, summary=f"{out}: {summary}")
    return found if plan.problems else _with_next_steps(found, plan, out)


def _with_next_steps(found: Report, plan: build.Plan, out: Path) -> Report:
    """What was applied, and how to start the scripts."""
    number = len({outcome.patch for outcome in found.outcomes})
    counted = f"{number} patch{'' if number == 1 else 'es'} of series {found.series}"
    lines = [f"{counted} applied; -v lists them. Next (--help shows all options):"]
    for script in plan.rendered:
        launcher = "python"
        if b"init_process_group(" in script.before:
            launcher = "torchrun --nproc_per_node=8"
        data = " --data DIR" if b"--data" in script.before else ""
        lines.append(f"  {launcher} {(out / script.file).as_posix()}{data}")
    return replace(found, next_steps=lines)


def _listed(names: Sequence[str]) -> str:
    """Names for a person: those in a folder are counted."""
    counts = Counter(name.rpartition("/")[0] or name for name in names)
    folders = {name.rpartition("/")[0] for name in names}
    return ", ".join(
        f"{part}/ ({n} file{'' if n == 1 else 's'})" if part in folders else part
        for part, n in counts.items()
    )


def check(project: Project, request: Request, out: Path) -> Report:
    plan, problems = _examine(project, request, out)
    summary = "" if problems else f"{out}: up to date, series {request.series}"
    return _report("check", plan, problems, summary=summary)


def diff(project: Project, request: Request, out: Path, names: Sequence[str]) -> Report:
    """From upstream to the build; or what each patch of `names` does on top of those before it."""
    plan, problems = _examine(project, request, out)
    known = [patch.slug() for patch in plan.patches]
    for name in names:
        if known and name not in known:
            has = ", ".join(known)
            raise UsageError(f"series {request.series} has no patch {name!r}; it has: {has}")
    before, support = {r.file: r.before for r in plan.rendered}, project.support()
    if names:
        diffs = list(export.steps(before, plan.patches, support, names).values())
    else:
        after = plan.files or build.made(plan.rendered, support)
        diffs = [
            unified.diff(before.get(name), after[name], f"upstream/{name}", f"{out.name}/{name}")
            for name in after
            if name != MANIFEST
        ]
    return Report("diff", request.series, problems=problems, diff=b"".join(diffs))


def listing(project: Project, series: str | None) -> Report:
    names = [series] if series else list(project.all_series())
    plans = {name: build.plan(project, Request(name)) for name in names}
    states: dict[str, set[str]] = {}
    members: dict[str, tuple[Patch, list[str]]] = {}
    for name, plan in plans.items():
        for patch in plan.patches:
            members.setdefault(patch.slug(), (patch, []))[1].append(name)
        for outcome in (outcome for result in plan.rendered for outcome in result.outcomes):
            states.setdefault(outcome.patch, set()).add(outcome.verdict.value)
    gravest = ("stale", "obsolete", "clean")
    rows = [
        Row(
            name,
            tuple(of_series),
            next((state for state in gravest if state in states.get(name, ())), "unknown"),
            "; ".join(f"{file}: {', '.join(where)}" for file, where in patch.sites.items()),
            patch.summary(),
        )
        for name, (patch, of_series) in members.items()
    ]
    problems = {str(problem): problem for plan in plans.values() for problem in plan.problems}
    return Report("list", series or "", problems=list(problems.values()), rows=rows)


def export_to(project: Project, request: Request, folder: Path, overwrite: bool) -> Report:
    _keep_sources(project, folder)
    plan = build.plan(project, request)
    if plan.failed:
        return _report("export", plan, plan.problems, summary=f"{folder}: nothing was written")
    commit = upstream.read(project.upstream)["original"]["commit"]
    scripts = {result.file: result.before for result in plan.rendered}
    files = export.files(scripts, plan.patches, project.support(), commit)
    changed = store.write(folder, files, {}, refuse=None if overwrite else _already_there)
    summary = f"{folder}: {len(files) - 1} patches and a series file"
    return _report("export", plan, plan.problems, changed=changed, summary=summary)


def _already_there(folder: Path, files: store.Files) -> list[Problem]:
    message, hint = "already there, and different", "Choose another folder, or use --overwrite."
    return [
        Problem(message, file=(folder / name).as_posix(), hint=hint)
        for name, content in files.items()
        if (folder / name).exists() and (folder / name).read_bytes() != content
    ]


def vendor(project: Project, source: str, **options: Any) -> Report:
    """See `patcher.vendor.vendor.take_in` for the options."""
    from patcher.vendor import vendor

    done = vendor.take_in(project, source, **options)
    return Report(
        "vendor",
        "",
        problems=done.problems,
        changed=done.changed,
        summary=done.summary,
        notes=done.judged.notes,
        tables=done.judged.tables,
        facts=done.judged.facts,
    )


def write_page(
    project: Project,
    request: Request,
    out: Path,
    runs: Sequence[str],
    verified: str | None,
    target: Path,
) -> Report:
    """Write the report; what is wrong stands in it, and ends the command as it ends `check`."""
    from patcher import page

    page.check_libraries(*page.LIBRARIES)
    from patcher.page import page as pages
    from patcher.page.curves import write
    from patcher.page.runs import read_all

    _keep_sources(project, target.parent)
    found, said = read_all(runs), pages.read_verified(verified) if verified else []
    plan, problems = _examine(project, request, out)
    problems += [problem for run in found for problem in run.problems]
    write(target, pages.html(project, plan, problems, found, said))
    summary = f"{target}: open it in a browser; it needs nothing else"
    return _report("report", plan, problems, changed=[target.name], summary=summary)


def plot(runs: Sequence[str], target: Path) -> Report:
    from patcher import page

    page.check_libraries("matplotlib")
    from patcher.page.curves import save
    from patcher.page.runs import read_all

    found = read_all(runs)
    save(found, target)
    problems = [problem for run in found for problem in run.problems]
    summary = f"{target}: {len(found)} run{'' if len(found) == 1 else 's'}"
    return Report("plot", "", problems=problems, changed=[target.name], summary=summary)


def verify(
    project: Project, request: Request, out: Path, screen: Screen, **options: Any
) -> tuple[list[Check], float]:
    """All findings, each shown as it comes, and the seconds that it took.  See `Options`."""
    from patcher.verify.verify import Options, verify

    begun, found = time.monotonic(), []
    for finding in verify(project, request, Options(out=out, **options), screen.tell):
        screen.add(finding)
        found.append(finding)
    return found, time.monotonic() - begun


def new(
    project: Project, name: str, files: Sequence[str], function: str, topic: str | None
) -> Report:
    from patcher.new import begin

    made = begin(project, name, files, function, topic)
    return Report("new", "", changed=made.files, summary=made.summary, next_steps=made.next_steps)


def _keep_sources(project: Project, target: Path) -> None:
    for folder in (project.upstream.resolve(), project.patches.resolve()):
        if folder in (target.resolve(), *target.resolve().parents):
            why = f"{folder.name}/ is what a build is made from"
            raise UsageError(f"{target}: nothing is written there, {why}")


def _examine(project: Project, request: Request, out: Path) -> tuple[build.Plan, list[Problem]]:
    """The plan, and all that is wrong with it or with the build; an obsolete patch counts."""
    _keep_sources(project, out)
    try:
        plan = build.plan(project, request)
    except UsageError:
        raise
    except Problem as broken:  # a patch that cannot be imported is one finding among others
        plan = build.Plan(request, [], [], [broken], {})
    for problem in plan.problems:
        problem.code = problem.code or 1
    named = {problem.file for problem in plan.problems}
    others = [found for found in build.compare(project, plan, out) if found.file not in named]
    return plan, plan.problems + others


def _report(
    command: str,
    plan: build.Plan,
    problems: Sequence[Problem],
    summary: str,
    changed: Sequence[str] = (),
) -> Report:
    outcomes = [outcome for rendered in plan.rendered for outcome in rendered.outcomes]
    return Report(command, plan.request.series, outcomes, problems, changed, summary=summary)
