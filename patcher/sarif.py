"""Findings of `check` and `rewrite` as SARIF 2.1.0, which code scanning and editors read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import patcher
from patcher.core.problem import Problem
from patcher.report import Report
from patcher.rewrite.results import Results

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
RULES = {
    "stale": "A patch does not fit its script: it finds other sites than it states, or refuses one",
    "obsolete": "Upstream has the edit of a patch now, so the patch can go",
    "changed": "A script, a patch or the build is not what `patcher apply` would write",
    "unreadable": "A file cannot be read, parsed or replaced",
    "local_rank_from_env": "--local_rank takes its default from LOCAL_RANK, where torchrun puts it",
    "reshape_topk": "A slice of hits is flattened with reshape: it is not contiguous, view raises",
    "configurable_gpus": "A list of GPUs in the code becomes the option --gpus",
    "async_keyword": "async= has been a keyword since Python 3.7: the argument is non_blocking=",
}


class _Found(NamedTuple):
    rule: str
    level: str
    message: str
    uri: str
    line: int = 0
    column: int = 0


def of_report(report: Report) -> str:
    """What `check` found.  A problem without a file is a notification, not a result."""
    found = [
        _Found(_rule(p), p.level, _said(p), _uri(p.file, report.root), p.line, p.column)
        for p in report.problems
        if p.file
    ]
    return _log(found, report.code, [p for p in report.problems if not p.file])


def of_results(results: Results) -> str:
    """What waits for somebody after `rewrite`: the same places as its annotations."""
    found = [
        _Found(patch or "unreadable", "error", message, _uri(file), line, column)
        for patch, file, line, column, message in results.waiting
    ]
    return _log(found, results.code, ())


def _said(problem: Problem) -> str:
    return problem.message + (f"\n{problem.hint}" if problem.hint else "")


def _rule(problem: Problem) -> str:
    return problem.kind or ("unreadable" if problem.code == 2 else "changed")


def _uri(file: str, root: str = "") -> str:
    """Relative to the working directory if the file is below it, as code scanning wants it."""
    path = Path(root, file) if root and os.path.lexists(Path(root, file)) else Path(file)
    relative = os.path.relpath(path).replace(os.sep, "/")
    return Path(path).absolute().as_uri() if relative.startswith("../") else quote(relative)


def _log(found: Sequence[_Found], code: int, notes: Sequence[Problem]) -> str:
    rules = [name for name in RULES if name in {each.rule for each in found}]
    driver = {
        "name": "patcher",
        "semanticVersion": patcher.__version__,
        "rules": [{"id": name, "shortDescription": {"text": RULES[name]}} for name in rules],
    }
    told = [{"level": note.level, "message": {"text": _said(note)}} for note in notes]
    invocation: dict[str, Any] = {"executionSuccessful": code != 2, "exitCode": code}
    if told:
        invocation["toolExecutionNotifications"] = told
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": list(_results(found, rules)),
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _results(found: Sequence[_Found], rules: Sequence[str]) -> Iterator[dict[str, Any]]:
    for each in found:
        place: dict[str, Any] = {"artifactLocation": {"uri": each.uri}}
        if each.line:
            place["region"] = {"startLine": each.line}
            if each.column:
                place["region"]["startColumn"] = each.column
        yield {
            "ruleId": each.rule,
            "ruleIndex": rules.index(each.rule),
            "level": each.level,
            "message": {"text": each.message},
            "locations": [{"physicalLocation": place}],
        }
