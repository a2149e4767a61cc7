"""The report: one page of HTML that needs nothing else, also no network."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

import patcher
from patcher.build import build, upstream
from patcher.build.project import Project
from patcher.core.patch import Patch
from patcher.core.problem import Problem, UsageError
from patcher.page import blame, curves
from patcher.page.runs import RecordedRun

FINDING = ("group", "name", "state", "message", "hint")
TEMPLATE = Path(__file__).with_name("report.html")


def html(
    project: Project,
    plan: build.Plan,
    problems: Sequence[Problem],
    runs: Sequence[RecordedRun] = (),
    verified: Sequence[Mapping[str, str]] = (),
) -> bytes:
    """The page.  The same project, build and runs give the same text: there is no time in it."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    outcomes = [outcome for result in plan.rendered for outcome in result.outcomes]
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        version=patcher.__version__,
        request=plan.request,
        origin=_origin(project),
        counts={
            v: sum(o.verdict.value == v for o in outcomes) for v in ("clean", "obsolete", "stale")
        },
        problems=problems,
        patches=[_row(project, patch, outcomes) for patch in plan.patches],
        scripts=list(_scripts(project, plan)),
        support=list(_modules(plan.files)),
        runs=[(run.name, run.summary()) for run in runs],
        dashes=[" ".join(map(str, dashes)) for dashes in curves.DASHES],
        curves=[(title, markupsafe.Markup(svg)) for title, svg in curves.svgs(runs)],
        verified=verified,
    )
    return text.encode("utf-8", "backslashreplace")


def read_verified(path: str) -> list[dict[str, str]]:
    """What `verify --format json` has said: its findings, each with all that the page shows."""
    try:
        said = json.loads(Path(path).read_bytes())
        if said["command"] != "verify":
            raise ValueError(said["command"])
        return [{key: str(one[key]) for key in FINDING} for one in said["findings"]]
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", file=path) from None
    except (ValueError, TypeError, KeyError):
        hint = "Write it with `python -m patcher verify --format json`."
        raise UsageError("not what verify says as json", file=path, hint=hint) from None


def _origin(project: Project) -> Mapping[str, Any]:
    try:
        return dict(upstream.read(project.upstream)["original"])
    except Problem:
        return {}  # a finding of the page says so


def _row(project: Project, patch: Patch, outcomes: Sequence[Any]) -> dict[str, Any]:
    """One patch in the table, with the gravest of its verdicts."""
    name = patch.slug()
    said = {outcome.verdict.value for outcome in outcomes if outcome.patch == name}
    title, _, rest = inspect.cleandoc(patch.__doc__ or "").partition("\n")
    return {
        "name": name,
        "title": title,
        "rest": [" ".join(part.split()) for part in rest.split("\n\n") if part.strip()],
        "series": [series for series, names in project.all_series().items() if name in names],
        "options": [f"{k}={v}" for k, v in patch.options.items() if v not in (None, False)],
        "verdict": next((v for v in ("stale", "obsolete", "clean") if v in said), "unknown"),
        "sites": {file: sum(counts.values()) for file, counts in patch.sites.items()},
        "origin": patch.origin if patch.origin.startswith(("https://", "http://")) else "",
    }


def _scripts(project: Project, plan: build.Plan) -> Iterator[dict[str, Any]]:
    """Each script: upstream beside the build, in stretches of which those alike are folded."""
    support = project.support()
    for result in plan.rendered:
        steps = list(blame.stages(result.file, result.before, plan.patches, support))
        if result.file in plan.files:
            steps.append((blame.ENGINE, plan.files[result.file]))
        found = blame.blocks(result.before, steps)
        pairs = [pair for block in found if block.kind == "changed" for pair in block.pairs]
        yield {
            "file": result.file,
            "built": result.file in plan.files,
            "removed": sum(left is not None for left, _ in pairs),
            "added": sum(right is not None for _, right in pairs),
            "patches": sum(result.file in patch.sites for patch in plan.patches),
            "stretches": [
                (folded, [row for block in same for row in _rows(block)])
                for folded, same in groupby(found, key=lambda block: block.kind == "far")
            ],
        }


def _rows(block: blame.Block) -> Iterator[dict[str, Any]]:
    """The rows of a diff; patches are named in the first of those that they have changed."""
    above: list[str] = []
    for pair in block.pairs:
        row = _cells(block.kind == "changed", pair)
        row["names"], above = [] if row["names"] == above else row["names"], row["names"]
        yield row


def _cells(changed: bool, pair: blame.Pair) -> dict[str, Any]:
    """One row; a changed line is in three parts, the middle one being the change."""
    left, right = pair
    texts = left.text if left else "", right.text if right else ""
    names = dict.fromkeys([*(right.names if right else ()), *(left.names if left else ())])
    return {
        "changed": changed,
        "left": left and (left.number, _parts(*texts) if changed else (texts[0], "", "")),
        "right": right and (right.number, _parts(*texts[::-1]) if changed else (texts[1], "", "")),
        "names": list(names) if changed else [],
    }


def _parts(text: str, other: str) -> tuple[str, str, str]:
    if SequenceMatcher(None, text, other, autojunk=False).ratio() < blame.ALIKE:
        return text, "", ""
    start = _alike(text, other)
    end = _alike(text[start:][::-1], other[start:][::-1])
    return text[:start], text[start : len(text) - end], text[len(text) - end :]


def _alike(text: str, other: str) -> int:
    """How many characters at their start are the same."""
    return next(
        (n for n, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other))
    )


def _modules(files: Mapping[str, bytes]) -> Iterator[tuple[str, int, str]]:
    """The modules of `support/` in the build: path, lines, and what they say they are."""
    for name, content in files.items():
        if name.startswith(f"{build.SUPPORT}/"):
            doc = ast.get_docstring(ast.parse(content)) or ""
            yield name, content.count(b"\n"), doc.partition("\n")[0]
