"""Rewrite one script: bytes in, bytes and findings out.  Pure: no paths, no printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patcher.core.problem import Problem
from patcher.rewrite import async_keyword, gpu_list, local_rank, reshape
from patcher.rewrite.environment import import_os
from patcher.rewrite.script import Script, compile_tree, decode
from patcher.rewrite.sites import Edit, Site, State, apply

Options = Mapping[str, Mapping]  # by patch
PATCHES = {
    "local_rank_from_env": local_rank,
    "reshape_topk": reshape,
    "configurable_gpus": gpu_list,
    "async_keyword": async_keyword,
}
"""By the names that the patches have in a series (`async_keyword` is in none): the same faults, in anybody's script."""


class Finding(NamedTuple):
    """What one patch has to say of one place; lines and columns count from 1.

    Of what is right already the place is what makes it so, be it far from the option or the slice itself.
    """

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
    return any(
        all(any(n in source for n in group) for group in PATCHES[name].NEEDLES) for name in patches
    )


def rewrite(
    file: str, source: bytes, patches: Sequence[str], options: Options | None = None
) -> Rewritten:
    """Apply `patches` wherever in `source` that is certainly right; `file` is its name in what is said of it."""
    patches = [name for name in patches if concerns(source, [name])]
    if not patches:
        return Rewritten(source, source)
    options = options or {}
    try:
        parsable, renamed = _renamed(file, source) if "async_keyword" in patches else (source, [])
        if parsable is None and patches == ["async_keyword"]:
            return Rewritten(source, source)
        script = Script(file, parsable or source)
        if renamed:
            compile_tree(file, script.tree)
        found = _sites(script, patches, options)
        findings = sorted(
            [
                *renamed,
                *(
                    Finding(name, s.state, s.node.lineno, script.column(s.node), s.why)
                    for name, s in found
                ),
            ],
            key=lambda finding: (finding.line, finding.column),
        )
        edits = [edit for _, site in found for edit in site.edits]
        if not edits:
            return Rewritten(source, script.source, findings)
        if any(site.imports_os for _, site in found):
            edits.append(import_os(script))
        after = _proved(script, edits, patches, options, found)
        return Rewritten(source, after, findings)
    except Problem as problem:
        return Rewritten(source, source, (), problem)


def _renamed(file: str, source: bytes) -> tuple[bytes | None, list[Finding]]:
    """The script with `async=` renamed, for then it may be parsed; None where nothing is called that."""
    text, encoding = decode(file, source)
    found = async_keyword.edits(text)
    if not found:
        return None, []
    edits = [edit for edit in found if edit]
    places = [
        (text.count("\n", 0, edit.start) + 1, edit.start - text.rfind("\n", 0, edit.start))
        for edit in edits
    ]
    findings = [
        Finding("async_keyword", State.REWRITTEN, *place, "is called non_blocking")
        for place in places
    ]
    return apply(text, edits).encode(encoding), findings


def _sites(script: Script, patches: Sequence[str], options: Options) -> list[tuple[str, Site]]:
    return [
        (name, site)
        for name in patches
        for site in PATCHES[name].sites(script, **options.get(name, {}))
    ]


def _proved(
    script: Script, edits: Sequence[Edit], patches, options, found: list[tuple[str, Site]]
) -> bytes:
    """The script after `edits`.

    Raises Problem unless that compiles, and a second run finds in it what the first has left, and no more.
    """
    result = script.edited(edits)
    try:
        compile_tree(script.file, result.fresh)
    except Problem as problem:
        compile_tree(script.file, script.tree)  # was it so before?  Then that is what is to be said
        raise Problem(
            f"a fault of patcher: the result does not compile: {problem.message}", file=script.file
        ) from None
    again = _sites(result, patches, options)

    def unsure(sites):
        return sorted((name, site.why) for name, site in sites if site.state is State.HUMAN)

    more = [site.node.lineno for _, site in again if site.state is State.REWRITTEN]
    if more or len(again) != len(found) or len(unsure(again)) != len(unsure(found)):
        why = "a fault of patcher: a second run would not be content with the first"
        raise Problem(why, file=script.file, line=(more or [0])[0])
    return result.text.encode(script.encoding)
