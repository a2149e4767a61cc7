"""Rewrite one script: bytes in, bytes and findings out.  Pure: no paths, no printing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from patcher.core.problem import Problem
from patcher.rewrite import async_keyword, gpu_list, local_rank, reshape
from patcher.rewrite.environment import import_os
from patcher.rewrite.script import Script, compile_tree, decode
from patcher.rewrite.sites import Edit, Site, State, apply

Options = Mapping[str, Mapping[str, bool]]  # by patch
Found = Sequence[tuple[str, Site]]  # each with its patch
PATCHES: Mapping[str, ModuleType] = {
    "local_rank_from_env": local_rank,
    "reshape_topk": reshape,
    "configurable_gpus": gpu_list,
    "async_keyword": async_keyword,
}
"""By the names of the patches in a series for the same faults (`async_keyword` is in none)."""


class Finding(NamedTuple):
    """What one patch has to say of one place; lines and columns count from 1.

    If all is right already, the place is what makes it so, be it far from the option or the slice.
    """

    patch: str
    state: State
    line: int
    column: int
    why: str = ""


class Rewritten(NamedTuple):
    """A script before and after; with a `problem` it could not be read, and `after` is `before`."""

    before: bytes
    after: bytes
    findings: Sequence[Finding] = ()
    problem: Problem | None = None


def concerns(source: bytes, patches: Sequence[str]) -> bool:
    """Whether anything in these bytes can concern the patches, before anything is parsed.

    Of each group of a patch's needles one has to be there.
    """
    return any(
        all(any(n in source for n in group) for group in PATCHES[name].NEEDLES) for name in patches
    )


def rewrite(
    file: str, source: bytes, patches: Sequence[str], options: Options | None = None
) -> Rewritten:
    """Apply `patches` wherever that is certainly right; `file` is the name in what is said."""
    patches = [name for name in patches if concerns(source, [name])]
    if not patches:
        return Rewritten(source, source)
    try:
        parsable, findings = _renamed(file, source) if "async_keyword" in patches else (None, [])
        if parsable is None and patches == ["async_keyword"]:
            return Rewritten(source, source)
        script = Script(file, parsable or source)
        if findings:
            compile_tree(file, script.tree)
        found = _sites(script, patches, options or {})
        for name, site in found:
            column = script.column(site.node)
            findings.append(Finding(name, site.state, site.node.lineno, column, site.why))
        findings.sort(key=lambda finding: (finding.line, finding.column))
        edits = [edit for _, site in found for edit in site.edits]
        if not edits:
            return Rewritten(source, script.source, findings)
        if any(site.imports_os for _, site in found):
            edits.append(import_os(script))
        return Rewritten(source, _proved(script, edits, patches, options or {}, found), findings)
    except Problem as problem:
        return Rewritten(source, source, (), problem)


def _renamed(file: str, source: bytes) -> tuple[bytes | None, list[Finding]]:
    """The script with `async=` renamed, so that it may be parsed; None if nothing has that name."""
    text, encoding = decode(file, source)
    found = async_keyword.edits(text)
    edits = [edit for edit in found if edit]
    findings = []
    for start, _, _ in edits:
        line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
        why = "is called non_blocking"
        findings.append(Finding("async_keyword", State.REWRITTEN, line, column, why))
    return apply(text, edits).encode(encoding) if found else None, findings


def _sites(script: Script, patches: Sequence[str], options: Options) -> list[tuple[str, Site]]:
    return [
        (name, site)
        for name in patches
        for site in PATCHES[name].sites(script, **options.get(name, {}))
    ]


def _proved(
    script: Script, edits: Sequence[Edit], patches: Sequence[str], options: Options, found: Found
) -> bytes:
    """The script after `edits`.

    Raises Problem unless it compiles, and a second run finds what the first has left and no more.
    """
    result = script.edited(edits)
    try:
        compile_tree(script.file, result.fresh)
    except Problem as problem:
        compile_tree(script.file, script.tree)  # was it so before?  Then that is what is to be said
        why = f"internal error: the result does not compile: {problem.message}"
        raise Problem(why, file=script.file) from None
    again = _sites(result, patches, options)
    before, after = (Counter(site.state for _, site in sites) for sites in (found, again))
    before[State.ALREADY] += before.pop(State.REWRITTEN, 0)
    if before != after:
        more = [site.node.lineno for _, site in again if site.state is State.REWRITTEN]
        why = "internal error: not idempotent"
        raise Problem(why, file=script.file, line=(more or [0])[0])
    return result.text.encode(script.encoding)
