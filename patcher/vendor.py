"""The command `vendor`: fetch another upstream, judge it, and write it to `upstream/`, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from patcher import arrival, judgement, sources, store, upstream
from patcher.problem import Problem, UsageError
from patcher.project import Project
from patcher.report import Report


def run(project: Project, args) -> Report:
    """What every series says to another upstream; with `args.write`, and if nothing is in the way, take it in.

    An obsolete patch is in the way like a stale one: the series has to be edited, and `check` would say so for ever.
    Raises Problem(s), and then has changed nothing.
    """
    if (args.accept_stale or args.accept_licence) and not args.write:
        raise UsageError("--accept-stale and --accept-licence say what to write: they need --write")
    folder = project.upstream
    if args.write:
        if project.is_installed:
            raise UsageError(f"{folder}: came with the installed patcher and is not written: work in a checkout")
        store.repair(folder)
    scripts, problems = upstream.verify(folder)
    names = ("LICENSE", "lock.json", *scripts)
    before = {name: path.read_bytes() for name in names if (path := folder / name).is_file()}
    present = arrival.Present(upstream.read(folder), scripts, before.get("LICENSE"))
    arrived = sources.fetch(args.source, arrival.wanted(present.lock), args.rev, args.timeout)
    judged = judgement.judge(project, arrived, present, args.path)

    for accepted, which in ((args.accept_stale, judged.stale), (args.accept_licence, judged.licence)):
        for problem in which if accepted else ():
            problem.code = 0
    problems = [*problems, *judged.others, *judged.licence, *judged.stale]
    found = {"notes": judged.notes, "tables": judged.tables, "facts": judged.facts}
    if any(problem.code for problem in problems):
        verb = "nothing was written" if args.write else "it could not be taken in as it is"
        return Report("vendor", "", problems=problems, summary=f"upstream/: {verb}", **found)
    if not args.write:
        renewed = [name for name, content in judged.files.items() if {**before, **scripts}.get(name) != content]
        what = "every patch of every series is clean" if set(renewed) & set(scripts) else "holds these scripts already"
        what += f"; --write would write {', '.join(renewed)}" if renewed else ""
        return Report("vendor", "", problems=problems, summary=f"upstream/: {what}", **found)
    changed = store.write(folder, judged.files, {}, refuse=_changed_since(before), command="vendor")
    summary = f"wrote {', '.join(changed)}. {judgement.what_check_says(judged)}" if changed else "nothing to do"
    return Report("vendor", "", problems=problems, changed=changed, summary=f"upstream/: {summary}", **found)


def _changed_since(seen: Mapping[str, bytes]) -> Callable:
    """Refuse to replace what is not what was judged, nor links, which others may share."""

    def refuse(folder: Path, files: Mapping[str, bytes | None]) -> list[Problem]:
        problems = []
        for name in files:
            path, file = folder / name, f"upstream/{name}"
            if path.is_symlink() or (path.exists() and path.stat().st_nlink > 1):
                problems.append(
                    Problem("a link, which would be replaced by a file", file=file, hint="Put a copy there.")
                )
            elif (path.read_bytes() if path.exists() else None) != seen.get(name):
                problems.append(Problem("changed while this ran", file=file, hint="Run it again."))
        return problems

    return refuse
