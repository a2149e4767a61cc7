"""What each command does, from a project and a request to a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from patcher.build import build, export, store, upstream
from patcher.build.manifest import MANIFEST
from patcher.build.project import Project, Request
from patcher.core import unified
from patcher.core.problem import Problem, UsageError
from patcher.report import Report, Row


def run(args, project: Project, request: Request, out: Path) -> Report:
    """The command that `args` names.  Raises Problem(s), and then has changed nothing."""
    target = Path(args.dir) if args.command == "export" else out
    for folder in (project.upstream.resolve(), project.patches.resolve()):
        if folder in (target.resolve(), *target.resolve().parents):
            raise UsageError(
                f"{target}: nothing is written there, {folder.name}/ is what a build is made from"
            )
    if args.command == "apply":
        return apply(project, request, out, args.overwrite)
    if args.command == "check":
        return check(project, request, out)
    if args.command == "diff":
        return diff(project, request, out, args.patch)
    if args.command == "list":
        return listing(project, args.series)
    if args.command == "vendor":
        from patcher.vendor import vendor

        options = ("rev", "path", "write", "accept_stale", "accept_licence", "timeout")
        done = vendor.take_in(
            project, args.source, **{name: getattr(args, name) for name in options}
        )
        judged = done.judged
        return Report(
            "vendor",
            "",
            problems=done.problems,
            changed=done.changed,
            summary=done.summary,
            notes=judged.notes,
            tables=judged.tables,
            facts=judged.facts,
        )
    return export_to(project, request, target, args.overwrite)


def apply(project: Project, request: Request, out: Path, overwrite: bool) -> Report:
    plan = build.plan(project, request)
    if plan.failed:
        return _report("apply", plan, summary=f"{out}: nothing was written")
    changed = build.apply(project, plan, out, overwrite)
    return _report(
        "apply",
        plan,
        changed=changed,
        summary=f"{out}: " + (f"wrote {_listed(changed)}" if changed else "nothing to do"),
    )


def _listed(names: Sequence[str]) -> str:
    """Names for a person: those in a folder are counted."""
    folders = Counter(name.rpartition("/")[0] for name in names)
    parts = dict.fromkeys(name.rpartition("/")[0] or name for name in names)
    words = {
        folder: f"{folder}/ ({n} file{'' if n == 1 else 's'})"
        for folder, n in folders.items()
        if folder
    }
    return ", ".join(words.get(part, part) for part in parts)


def check(project: Project, request: Request, out: Path) -> Report:
    plan, problems = _examine(project, request, out)
    return _report("check", plan, problems=problems)


def diff(project: Project, request: Request, out: Path, names: list[str]) -> Report:
    """From upstream to the build; or, with `names`, what each of these patches does on top of those before it."""
    plan, problems = _examine(project, request, out)
    known = [patch.slug() for patch in plan.patches]
    for name in names:
        if known and name not in known:
            raise UsageError(
                f"series {request.series} has no patch {name!r}; it has: {', '.join(known)}"
            )
    if names:
        steps = export.steps(
            {r.file: r.before for r in plan.rendered}, plan.patches, project.support(), names
        )
        text = b"".join(steps.values())
    else:
        before = {r.file: r.before for r in plan.rendered}
        after = plan.files or build.made(plan.rendered, project.support())
        text = b"".join(
            unified.diff(before.get(name), after[name], f"upstream/{name}", f"{out.name}/{name}")
            for name in after
            if name != MANIFEST
        )
    return Report("diff", request.series, problems=problems, diff=text)


def listing(project: Project, series: str | None) -> Report:
    plans = [
        build.plan(project, Request(name))
        for name in ([series] if series else project.all_series())
    ]
    rows = []
    for patch in {patch.slug(): patch for plan in plans for patch in plan.patches}.values():
        verdicts = {
            o.verdict.value
            for plan in plans
            for r in plan.rendered
            for o in r.outcomes
            if o.patch == patch.slug()
        }
        rows.append(
            Row(
                patch.slug(),
                tuple(
                    plan.request.series
                    for plan in plans
                    if patch.slug() in (p.slug() for p in plan.patches)
                ),
                next(
                    (state for state in ("stale", "obsolete", "clean") if state in verdicts),
                    "unknown",
                ),
                "; ".join(
                    f"{file}: {', '.join(functions)}" for file, functions in patch.sites.items()
                ),
                patch.summary(),
            )
        )
    problems = {str(problem): problem for plan in plans for problem in plan.problems}
    return Report("list", series or "", problems=list(problems.values()), rows=rows)


def export_to(project: Project, request: Request, folder: Path, overwrite: bool) -> Report:
    plan = build.plan(project, request)
    if plan.failed:
        return _report("export", plan, summary=f"{folder}: nothing was written")
    commit = upstream.read(project.upstream)["original"]["commit"]
    files = export.files(
        {r.file: r.before for r in plan.rendered}, plan.patches, project.support(), commit
    )
    changed = store.write(folder, files, {}, refuse=None if overwrite else _already_there)
    return _report(
        "export",
        plan,
        changed=changed,
        summary=f"{folder}: {len(files) - 1} patches and a series file",
    )


def _already_there(folder: Path, files) -> list[Problem]:
    return [
        Problem(
            "already there, and different",
            file=(folder / name).as_posix(),
            hint="Choose another folder, or use --overwrite.",
        )
        for name, content in files.items()
        if (folder / name).exists() and (folder / name).read_bytes() != content
    ]


def _examine(project: Project, request: Request, out: Path) -> tuple[build.Plan, list[Problem]]:
    """The plan, and all that is wrong with it or with the build; an obsolete patch counts."""
    try:
        plan = build.plan(project, request)
    except UsageError:
        raise
    except Problem as problem:  # a patch that cannot even be imported is one finding among others
        plan = build.Plan(request, [], [], [problem], {})
    for problem in plan.problems:
        problem.code = problem.code or 1
    named = {problem.file for problem in plan.problems}
    return plan, plan.problems + [
        problem for problem in build.compare(project, plan, out) if problem.file not in named
    ]


def _report(
    command: str, plan: build.Plan, problems: list[Problem] | None = None, **found
) -> Report:
    outcomes = [outcome for rendered in plan.rendered for outcome in rendered.outcomes]
    return Report(
        command,
        plan.request.series,
        outcomes,
        plan.problems if problems is None else problems,
        **found,
    )
