"""Render everything in memory, then write all or nothing.

`plan` says what `build/` should hold, `compare` how the folder differs from that, and `apply`
makes it so.
"""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

import patcher
from patcher.build import manifest, upstream
from patcher.build.manifest import MANIFEST, UNDO
from patcher.build.project import Project, Request
from patcher.core.problem import Problem

SUPPORT = "support"  # the folder in `patches/`, and in a build that needs it

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from patcher.core.engine import Rendered
    from patcher.core.patch import Patch


class Plan(namedtuple("Plan", "request patches rendered problems files")):
    """What a build should be: the patches of the request, a `Rendered` per script, the findings, and name to bytes.

    A name is a path in the build: `distributed.py`, `support/ranks.py`.
    `files` is empty where a problem with code > 0 forbids writing.
    """

    @property
    def failed(self) -> bool:
        return any(problem.code for problem in self.problems)


def plan(project: Project, request: Request) -> Plan:
    """Verify upstream, run every patch on every file, and only then say what would be written."""
    patches = project.patches_of(request)
    scripts, problems = upstream.verify(project.upstream)
    problems += [
        Problem(f"names a file that is not in upstream/: {name}", file=f"patches/{patch.slug()}.py")
        for patch in patches
        for name in sorted(patch.sites.keys() - scripts.keys())
    ]
    if problems:
        return Plan(request, patches, [], problems, {})
    return _render(project, request, patches, scripts)


def _render(
    project: Project, request: Request, patches: list[Patch], scripts: dict[str, bytes]
) -> Plan:
    from patcher.core import engine
    from patcher.core.text import compile_check

    rendered, problems, support = [], [], project.support()
    for name, source in support.items():
        try:
            compile_check(f"patches/{SUPPORT}/{name}.py", source)
        except Problem as problem:
            problems.append(problem)
    if problems:
        return Plan(request, patches, [], problems, {})
    for name, source in scripts.items():
        try:
            rendered.append(engine.render(name, source, patches, support))
        except Problem as problem:
            if not problem.file.startswith("patches/"):
                problem.file = f"upstream/{problem.file}"
            problems.append(problem)
        except Exception as error:
            raise project.blame(error, f"crashed on upstream/{name}") or error from error
    problems += _findings(project, request, patches, rendered)
    missing = {module for result in rendered for module in result.support} - support.keys()
    problems += [
        Problem(
            "missing, but imported by what the series needs", file=f"patches/{SUPPORT}/{module}.py"
        )
        for module in sorted(missing)
    ]
    files = made(rendered, support)
    if "support.py" in scripts and len(files) > len(scripts):
        message = "upstream has a module support, and the series needs a folder of this name beside the scripts"
        problems.append(Problem(message, file="upstream/support.py"))
    if any(problem.code for problem in problems):
        return Plan(request, patches, rendered, problems, {})
    files = _marked(request, files)
    files[MANIFEST] = _manifest(project, request, patches, rendered, files)
    return Plan(request, patches, rendered, problems, files)


def _findings(
    project: Project, request: Request, patches: list[Patch], rendered: Sequence[Rendered]
) -> list[Problem]:
    """A finding for each patch that is not CLEAN; that one is obsolete does not keep the others from being applied."""
    outcomes = [outcome for result in rendered for outcome in result.outcomes]
    if all(outcome.verdict.value == "clean" for outcome in outcomes):
        return []
    from patcher.build import verdicts

    texts = verdicts.Texts({result.file: result.before for result in rendered}, {})
    places = {result.file: f"upstream/{result.file}" for result in rendered}
    by_name = {request.series: {patch.slug(): patch for patch in patches}}
    found, _ = verdicts.problems(project, {request.series: outcomes}, by_name, places, texts)
    for problem in found:
        problem.code = 0 if ": obsolete" in problem.message else 1
    return found


def made(rendered: Sequence[Rendered], support: Mapping[str, bytes]) -> dict[str, bytes]:
    """Name to bytes of the scripts and of the support modules that they reach, not marked yet."""
    reached = {module for result in rendered for module in result.support}
    return {
        **{result.file: result.after for result in rendered},
        **{
            f"{SUPPORT}/{module}.py": support[module] for module in sorted(reached & support.keys())
        },
    }


def _marked(request: Request, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files, each with a line that says where it comes from.

    Where there is a `support/`, the line names the build too: a script can tell a folder that is not its own.
    """
    from patcher.core import engine

    series, marked = f"series {request.series}", {}
    if any(_is_support(name) for name in files):
        sums = "".join(
            f"{name} {manifest.sha256(content)}\n" for name, content in sorted(files.items())
        )
        series += f", build {manifest.sha256(sums.encode())[:12]}"
    for name, content in files.items():
        text = f"@generated by patcher from {_origin(name)}, {series}: edit patches/, not this."
        marked[name] = engine.mark(content, text)
    return marked


def _origin(name: str) -> str:
    """Where a file of the build comes from, as a path in the project."""
    return f"patches/{name}" if _is_support(name) else f"upstream/{name}"


def _is_support(name: str) -> bool:
    return name.startswith(f"{SUPPORT}/")


def _manifest(
    project: Project,
    request: Request,
    patches: list[Patch],
    rendered: list[Rendered],
    files: dict[str, bytes],
) -> bytes:
    from libcst import LIBCST_VERSION

    lock = upstream.read(project.upstream)
    hits = {
        patch.slug(): {
            r.file: dict(o.found) for r in rendered for o in r.outcomes if o.patch == patch.slug()
        }
        for patch in patches
    }
    data = {
        "patcher": patcher.__version__,
        "libcst": LIBCST_VERSION,
        "series": request.series,
        "set": list(request.sets),
        "upstream": {key: lock["original"][key] for key in ("repository", "commit")},
        "patches": [
            {"name": p.slug(), "options": p.options, "hits": hits[p.slug()]} for p in patches
        ],
        "inputs": project.inputs(),
        "outputs": {name: manifest.sha256(content) for name, content in sorted(files.items())},
    }
    return manifest.serialise(data)


def compare(project: Project, planned: Plan, out: Path) -> list[Problem]:
    """How `out` differs from what `apply` would write there, a finding a file."""
    if (out / UNDO).exists():
        return [
            Problem(
                "an apply was interrupted",
                file=out.as_posix(),
                hint="Run `apply` again: it first puts back what was there.",
            )
        ]
    try:
        written = manifest.read(out)
    except Problem as problem:
        return [problem]
    if written is None:
        return [
            Problem("not built yet", file=out.as_posix(), hint="Run `python -m patcher apply`.")
        ]
    again = "Run `python -m patcher apply`."
    if manifest.request_of(written) != planned.request:
        return [
            Problem(
                f"built as {_words(manifest.request_of(written))}, not as {_words(planned.request)}",
                file=out.as_posix(),
                hint=again,
            )
        ]
    problems, inputs = [], project.inputs()
    for name in sorted(inputs.keys() | written["inputs"].keys()):
        if inputs.get(name) != written["inputs"].get(name):
            how = (
                "new"
                if name not in written["inputs"]
                else "gone"
                if name not in inputs
                else "changed"
            )
            problems.append(
                Problem(f"{how} since {out.as_posix()}/ was written", file=name, hint=again)
            )
    lost = not (out / SUPPORT).is_dir()
    if lost and any(map(_is_support, written["outputs"])):
        what = "not a folder" if os.path.lexists(out / SUPPORT) else "missing"
        problems.append(Problem(what, file=(out / SUPPORT).as_posix(), hint=again))
    for name in sorted(written["outputs"]):
        if lost and _is_support(name):
            continue
        if manifest.file_sha256(out / name) != written["outputs"][name]:
            problems.append(_edited(out, name, written, planned.files.get(name)))
    return problems


def hand_edited(out: Path, files: dict[str, bytes]) -> list[Problem]:
    """The files in `out` that `write` would destroy although `apply` did not write them."""
    try:
        written = manifest.read(out)
    except Problem:
        written = None  # then no file can be shown to be ours
    problems = []
    for name, content in files.items():
        path = out / name
        if path.is_symlink() or (path.exists() and path.stat().st_nlink > 1):
            kind = "a symbolic link" if path.is_symlink() else "a hard link"
            problems.append(
                Problem(
                    f"{kind}, which `apply` would replace by a file",
                    file=f"{out.as_posix()}/{name}",
                )
            )
        elif path.exists() and path.read_bytes() != content:
            if name == MANIFEST:
                if written is None:
                    problems.append(
                        Problem(
                            "not a manifest that `apply` wrote", file=f"{out.as_posix()}/{name}"
                        )
                    )
            elif written is None or name not in written["outputs"]:
                problems.append(
                    Problem(
                        "already there, and not written by `apply`", file=f"{out.as_posix()}/{name}"
                    )
                )
            elif manifest.file_sha256(path) != written["outputs"][name]:
                problems.append(_edited(out, name, written, content))
    for problem in problems:
        problem.hint = "Keep what you need of it, best as a patch, then run `apply --overwrite`."
    return problems


def apply(project: Project, planned: Plan, out: Path, overwrite: bool = False) -> list[str]:
    """Write the plan to `out`, all or nothing, and name the files that have changed.

    Raises Problem where the plan has failed, a file was edited by hand (without `overwrite`), or
    something cannot be written; `out` is then as it was.
    """
    from patcher.build import store

    modes = {
        name: (project.root / _origin(name)).stat().st_mode & 0o777
        for name in planned.files
        if name != MANIFEST
    }

    def files() -> dict[str, bytes | None]:
        try:
            written = manifest.read(out) or {"outputs": {}}
        except Problem:
            written = {"outputs": {}}
        gone = dict.fromkeys(written["outputs"].keys() - planned.files.keys())  # no longer made
        return {**gone, **planned.files}

    return store.write(out, files, modes, refuse=None if overwrite else hand_edited)


def _edited(out: Path, name: str, written: dict, planned: bytes | None) -> Problem:
    if not (out / name).is_file():
        return Problem(
            "not a file" if os.path.lexists(out / name) else "missing",
            file=f"{out.as_posix()}/{name}",
        )
    line, found = 0, ""
    # Only where the plan is what the manifest describes do we know what stood there.
    if planned is not None and manifest.sha256(planned) == written["outputs"][name]:
        old, new = planned.split(b"\n"), (out / name).read_bytes().split(b"\n")
        at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
        line, found = (
            at + 1,
            f", now {new[at].decode('utf-8', 'replace').strip()!r}"
            if at < len(new)
            else ", now the end of the file",
        )
    return Problem(
        "edited by hand" + found,
        file=f"{out.as_posix()}/{name}",
        line=line,
        hint="Keep what you need of it, best as a patch, then run `apply --overwrite`.",
    )


def _words(request: Request) -> str:
    return " ".join([f"series {request.series}", *(f"--set {text}" for text in request.sets)])
