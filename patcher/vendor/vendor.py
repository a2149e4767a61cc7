"""Fetch another upstream, judge it, and write it to `upstream/`, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patcher.build import store, upstream
from patcher.build.project import Project
from patcher.core.problem import Problem, UsageError
from patcher.vendor import compare, judgement, sources


@dataclass(frozen=True)
class Vendored:
    """What was judged, all that is wrong with it, and which files of `upstream/` were written."""

    judged: judgement.Judgement
    problems: Sequence[Problem]
    changed: Sequence[str]
    summary: str


def take_in(
    project: Project,
    source: str,
    *,
    rev: str | None = None,
    path: str | None = None,
    write: bool = False,
    accept_stale: bool = False,
    accept_licence: bool = False,
    timeout: float = 120,
) -> Vendored:
    """What every series says to another upstream; with `write`, take it in if all agree.

    An obsolete patch is in the way like a stale one: the series has to be edited, and `check` would
    say so for ever.  `path` is the folder in `source`, `timeout` the seconds that git may take.
    Raises Problem(s), and then has changed nothing.
    """
    if (accept_stale or accept_licence) and not write:
        raise UsageError("--accept-stale and --accept-licence say what to write: they need --write")
    folder = project.upstream
    if write:
        if project.is_installed:
            why = "came with the installed patcher and is not written: work in a checkout"
            raise UsageError(f"{folder}: {why}")
        store.repair(folder)
    scripts, problems = upstream.verify(folder)
    names = ("LICENSE", "lock.json", *scripts)
    before = {name: file.read_bytes() for name in names if (file := folder / name).is_file()}
    present = compare.Present(upstream.read(folder), scripts, before.get("LICENSE"))
    arrived = sources.fetch(source, compare.wanted(present.lock), rev, timeout)
    judged = judgement.judge(project, arrived, present, path)

    for accepted, which in ((accept_stale, judged.stale), (accept_licence, judged.licence)):
        for problem in which if accepted else ():
            problem.code = 0
    problems = [*problems, *judged.others, *judged.licence, *judged.stale]
    changed: list[str] = []
    if any(problem.code for problem in problems):
        summary = "nothing was written" if write else "it could not be taken in as it is"
    elif not write:
        now = {**before, **scripts}
        renewed = [name for name, content in judged.files.items() if now.get(name) != content]
        clean, same = "every patch of every series is clean", "holds these scripts already"
        summary = clean if set(renewed) & set(scripts) else same
        summary += f"; --write would write {', '.join(renewed)}" if renewed else ""
    else:
        refuse = _changed_since(before)
        changed = store.write(folder, judged.files, {}, refuse=refuse, command="vendor")
        wrote = f"wrote {', '.join(changed)}. {judgement.what_check_says(judged)}"
        summary = wrote if changed else "nothing to do"
    return Vendored(judged, problems, changed, f"upstream/: {summary}")


def _changed_since(
    seen: Mapping[str, bytes],
) -> Callable[[Path, Mapping[str, bytes | None]], list[Problem]]:
    """Refuse to replace what is not what was judged, and links, which others may share."""

    def refuse(folder: Path, files: Mapping[str, bytes | None]) -> list[Problem]:
        problems = []
        for name in files:
            path, file = folder / name, f"upstream/{name}"
            if path.is_symlink() or (path.exists() and path.stat().st_nlink > 1):
                message, hint = "a link, which would be replaced by a file", "Put a copy there."
                problems.append(Problem(message, file=file, hint=hint))
            elif (path.read_bytes() if path.exists() else None) != seen.get(name):
                problems.append(Problem("changed while this ran", file=file, hint="Run it again."))
        return problems

    return refuse
