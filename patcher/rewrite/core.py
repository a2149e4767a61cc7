"""Rewrite one script: bytes in, bytes and findings out.  Pure: no paths, no printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patcher.problem import Problem
from patcher.rewrite import gpu_list, local_rank, reshape
from patcher.rewrite.environment import import_os
from patcher.rewrite.script import Script, compile_tree
from patcher.rewrite.sites import Edit, Site, State

Options = Mapping[str, Mapping]  # by patch
PATCHES = {
    "local_rank_from_env": local_rank,
    "reshape_topk": reshape,
    "configurable_gpus": gpu_list,
}
"""By the names that the patches have in a series: the same faults, in the forms of anybody's script."""


class Finding(NamedTuple):
    """What one patch has to say of one place; lines and columns count from 1."""

    patch: str
    state: State
    line: int
    column: int
    why: str = ""


class Rewritten(NamedTuple):
    """A script before and after; `problem` where it could not be read, and then `after` is `before`."""

    before: bytes
    after: bytes
    findings: Sequence[Finding] = ()
    problem: Problem | None = None


def concerns(source: bytes, patches: Sequence[str]) -> bool:
    """Whether anything in these bytes can concern the patches: looked at before anything is parsed.

    Of each group of a patch's needles one has to be there.
    """
    return any(all(any(n in source for n in group) for group in PATCHES[name].NEEDLES) for name in patches)


def rewrite(file: str, source: bytes, patches: Sequence[str], options: Options | None = None) -> Rewritten:
    """Apply `patches` wherever in `source` that is certainly right; `file` is its name in what is said of it."""
    patches = [name for name in patches if concerns(source, [name])]
    if not patches:
        return Rewritten(source, source)
    options = options or {}
    try:
        script = Script(file, source)
        found = _sites(script, patches, options)
        findings = sorted(
            (Finding(name, site.state, site.node.lineno, script.column(site.node), site.why) for name, site in found),
            key=lambda finding: (finding.line, finding.column),
        )
        edits = [edit for _, site in found for edit in site.edits]
        if not edits:
            return Rewritten(source, source, findings)
        if any(site.imports_os for _, site in found):
            edits.append(import_os(script))
        after = _proved(script, edits, patches, options, found)
        return Rewritten(source, after, findings)
    except Problem as problem:
        return Rewritten(source, source, (), problem)


def _sites(script: Script, patches: Sequence[str], options: Options) -> list[tuple[str, Site]]:
    return [(name, site) for name in patches for site in PATCHES[name].sites(script, **options.get(name, {}))]


def _proved(script: Script, edits: Sequence[Edit], patches, options, found: list[tuple[str, Site]]) -> bytes:
    """The script after `edits`.

    Raises Problem unless that compiles, and a second run finds in it what the first has left, and no more.
    """
    result = script.edited(edits)
    try:
        compile_tree(script.file, result.fresh)
    except Problem as problem:
        compile_tree(script.file, script.tree)  # was it so before?  Then that is what is to be said
        raise Problem(f"a fault of patcher: the result does not compile: {problem.message}", file=script.file) from None
    again = _sites(result, patches, options)

    def unsure(sites):
        return sorted((name, site.why) for name, site in sites if site.state is State.HUMAN)

    more = [site.node.lineno for _, site in again if site.state is State.REWRITTEN]
    if more or len(again) != len(found) or len(unsure(again)) != len(unsure(found)):
        why = "a fault of patcher: a second run would not be content with the first"
        raise Problem(why, file=script.file, line=(more or [0])[0])
    return result.text.encode(script.encoding)
