"""Render everything in memory, then write all or nothing.

`plan` says what `build/` should hold, `compare` how the folder differs from that, and `apply`
makes it so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import patcher
from patcher.build import manifest, upstream
from patcher.build.manifest import MANIFEST, UNDO
from patcher.build.project import Project, Request
from patcher.core.problem import Problem

if TYPE_CHECKING:
    from patcher.core.engine import Rendered
    from patcher.core.patch import Patch

SUPPORT = "support"  # the folder in `patches/`, and in a build that needs it
AGAIN = "Run `python -m patcher apply`."
KEEP = "Keep what you need of it, best as a patch, then run `apply --overwrite`."


class Plan(NamedTuple):
    """What a build should be.  A problem with code > 0 forbids writing; `files` is then empty."""

    request: Request
    patches: Sequence[Patch]
    rendered: Sequence[Rendered]
    problems: list[Problem]
    files: Mapping[str, bytes]  # by path in the build: `distributed.py`, `support/ranks.py`

    @property
    def failed(self) -> bool:
        return any(problem.code for problem in self.problems)


def plan(project: Project, request: Request) -> Plan:
    """Verify upstream, run every patch on every file, and only then say what would be written."""
    patches, support = project.patches_of(request), project.support()
    scripts, problems = upstream.verify(project.upstream)
    problems += [
        Problem(f"names a file that is not in upstream/: {name}", file=f"patches/{patch.slug()}.py")
        for patch in patches
        for name in sorted(patch.sites.keys() - scripts.keys())
    ]
    problems += _unreadable(support)
    if problems:
        return Plan(request, patches, [], problems, {})
    rendered, problems = _render(project, patches, scripts, support)
    problems += _findings(project, request, patches, rendered)
    reached = {module for result in rendered for module in result.support}
    message = "missing, but imported by what the series needs"
    for module in sorted(reached - support.keys()):
        problems.append(Problem(message, file=f"patches/{SUPPORT}/{module}.py"))
    if reached and "support.py" in scripts:
        message = "upstream has a module support, and the series needs a folder of this name"
        problems.append(Problem(message, file="upstream/support.py"))
    files: dict[str, bytes] = {}
    if not any(problem.code for problem in problems):
        files = _marked(request, made(rendered, support))
        files[MANIFEST] = _manifest(project, request, patches, rendered, files)
    return Plan(request, patches, rendered, problems, files)


def _unreadable(support: Mapping[str, bytes]) -> list[Problem]:
    from patcher.core.text import compile_check

    problems = []
    for name, source in support.items():
        try:
            compile_check(f"patches/{SUPPORT}/{name}.py", source)
        except Problem as problem:
            problems.append(problem)
    return problems


def _render(
    project: Project,
    patches: Sequence[Patch],
    scripts: Mapping[str, bytes],
    support: Mapping[str, bytes],
) -> tuple[list[Rendered], list[Problem]]:
    from patcher.core import engine

    rendered, problems = [], []
    for name, source in scripts.items():
        try:
            rendered.append(engine.render(name, source, patches, support))
        except Problem as problem:
            if not problem.file.startswith("patches/"):
                problem.file = f"upstream/{problem.file}"
            problems.append(problem)
        except Exception as error:
            raise project.blame(error, f"crashed on upstream/{name}") or error from error
    return rendered, problems


def _findings(
    project: Project, request: Request, patches: Sequence[Patch], rendered: Sequence[Rendered]
) -> list[Problem]:
    """A finding for each patch that is not CLEAN: an error if stale, a warning if obsolete."""
    outcomes = [outcome for result in rendered for outcome in result.outcomes]
    if all(outcome.verdict.value == "clean" for outcome in outcomes):
        return []
    from patcher.build import verdicts

    texts = verdicts.Texts({result.file: result.before for result in rendered}, {})
    places = {result.file: f"upstream/{result.file}" for result in rendered}
    tables = {request.series: outcomes}
    by_name = {request.series: {patch.slug(): patch for patch in patches}}
    found, _ = verdicts.problems(project, tables, by_name, places, texts, code_if_obsolete=0)
    return found


def made(rendered: Sequence[Rendered], support: Mapping[str, bytes]) -> dict[str, bytes]:
    """The scripts and the support modules that they reach, not marked yet, by path in the build."""
    reached = {module for result in rendered for module in result.support}
    modules = sorted(reached & support.keys())
    files = {result.file: result.after for result in rendered}
    return files | {f"{SUPPORT}/{module}.py": support[module] for module in modules}


def _marked(request: Request, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files, each with a line that says where it comes from.

    With a `support/`, the line names the build too: a script can tell a folder that is not its own.
    """
    from patcher.core.text import mark

    series = f"series {request.series}"
    if any(map(_is_support, files)):
        sums = [f"{name} {manifest.sha256(content)}\n" for name, content in sorted(files.items())]
        series += f", build {manifest.sha256(''.join(sums).encode())[:12]}"
    line = "@generated by patcher from {}, {}: edit patches/, not this."
    return {
        name: mark(content, line.format(_origin(name), series)) for name, content in files.items()
    }


def _origin(name: str) -> str:
    """Where a file of the build comes from, as a path in the project."""
    return f"patches/{name}" if _is_support(name) else f"upstream/{name}"


def _is_support(name: str) -> bool:
    return name.startswith(f"{SUPPORT}/")


def _manifest(
    project: Project,
    request: Request,
    patches: Sequence[Patch],
    rendered: Sequence[Rendered],
    files: Mapping[str, bytes],
) -> bytes:
    from libcst import LIBCST_VERSION

    original = upstream.read(project.upstream)["original"]
    hits: dict[str, dict[str, dict[str, int]]] = {patch.slug(): {} for patch in patches}
    for outcome in (outcome for result in rendered for outcome in result.outcomes):
        hits[outcome.patch][outcome.file] = dict(outcome.found)
    data = {
        "patcher": patcher.__version__,
        "libcst": LIBCST_VERSION,
        "series": request.series,
        "set": list(request.sets),
        "upstream": {key: original[key] for key in ("repository", "commit")},
        "patches": [
            {"name": p.slug(), "options": p.options, "hits": hits[p.slug()]} for p in patches
        ],
        "inputs": project.inputs(),
        "outputs": {name: manifest.sha256(content) for name, content in sorted(files.items())},
    }
    return manifest.serialise(data)


def compare(project: Project, planned: Plan, out: Path) -> list[Problem]:
    """How `out` differs from what `apply` would write there, a finding a file."""
    folder = out.as_posix()
    if (out / UNDO).exists():
        hint = "Run `apply` again: it first puts back what was there."
        return [Problem("an apply was interrupted", file=folder, hint=hint)]
    try:
        written = manifest.read(out)
    except Problem as problem:
        return [problem]
    if written is None:
        return [Problem("not built yet", file=folder, hint=AGAIN)]
    if (request := manifest.request_of(written)) != planned.request:
        message = f"built as {request}, not as {planned.request}"
        return [Problem(message, file=folder, hint=AGAIN)]
    problems = []
    then, now = written["inputs"], project.inputs()
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            how = "new" if name not in then else "gone" if name not in now else "changed"
            problems.append(Problem(f"{how} since {folder}/ was written", file=name, hint=AGAIN))
    names = sorted(written["outputs"])
    if any(map(_is_support, names)) and not (out / SUPPORT).is_dir():
        problems.append(_missing(out / SUPPORT, "folder"))
        names = [name for name in names if not _is_support(name)]
    edits = (_edit(out, name, written, planned.files.get(name)) for name in names)
    return problems + [edit for edit in edits if edit]


def hand_edited(out: Path, files: Mapping[str, bytes | None]) -> list[Problem]:
    """The files in `out` that `write` would destroy although `apply` did not write them."""
    try:
        written = manifest.read(out)
    except Problem:
        written = None  # then no file can be shown to be ours
    found = (_loss(out, name, content, written) for name, content in files.items())
    return [problem for problem in found if problem]


def _loss(
    out: Path, name: str, content: bytes | None, written: dict[str, Any] | None
) -> Problem | None:
    """What would be lost if `content` were written to this file."""
    path = out / name
    if path.is_symlink() or (path.exists() and path.stat().st_nlink > 1):
        kind = "symbolic" if path.is_symlink() else "hard"
        why = f"a {kind} link, which `apply` would replace by a file"
    elif not path.exists() or path.read_bytes() == content:
        return None
    elif name == MANIFEST:
        if written is not None:
            return None
        why = "not a manifest that `apply` wrote"
    elif written is None or name not in written["outputs"]:
        why = "already there, and not written by `apply`"
    else:
        return _edit(out, name, written, content)
    return Problem(why, file=path.as_posix(), hint=KEEP)


def _edit(out: Path, name: str, written: dict[str, Any], planned: bytes | None) -> Problem | None:
    """What was done to a file since `apply` wrote it; with the line, if it wrote `planned`."""
    path, digest = out / name, written["outputs"][name]
    if manifest.file_sha256(path) == digest:
        return None
    if not path.is_file():
        return _missing(path, "file")
    message, line = "edited by hand", 0
    if planned is not None and manifest.sha256(planned) == digest:
        now = path.read_bytes().split(b"\n")
        line, found = upstream.first_edit(planned.split(b"\n"), now, now)
        message += f", now {found}"
    return Problem(message, file=path.as_posix(), line=line, hint=KEEP)


def _missing(path: Path, kind: str) -> Problem:
    message = f"not a {kind}" if os.path.lexists(path) else "missing"
    return Problem(message, file=path.as_posix(), hint=AGAIN)


def apply(project: Project, planned: Plan, out: Path, overwrite: bool = False) -> list[str]:
    """Write the plan to `out`, all or nothing, and name the files that have changed.

    Raises Problem(s) if a file was edited by hand (without `overwrite`) or something cannot be
    written; `out` is then as it was.
    """
    from patcher.build import store

    names = planned.files.keys() - {MANIFEST}
    modes = {name: (project.root / _origin(name)).stat().st_mode & 0o777 for name in names}

    def files() -> dict[str, bytes | None]:
        try:
            written = manifest.read(out)
        except Problem:
            written = None
        outputs = written["outputs"] if written else {}
        return {**dict.fromkeys(outputs.keys() - planned.files.keys()), **planned.files}

    return store.write(out, files, modes, refuse=None if overwrite else hand_edited)
