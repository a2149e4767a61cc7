"""The truth table: what the hits of a patch and its `done` say about a script."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import libcst as cst

from patcher.core.draft import Draft, Refused
from patcher.core.patch import Patch
from patcher.core.single_pass import Printer, apply_once
from patcher.tree.names import MODULE

FAULT = "a fault of the patch itself: "


class Verdict(Enum):
    """What the truth table says about one patch on one file."""

    CLEAN = "clean"  # as many hits as stated, not done before, done after
    OBSOLETE = "obsolete"  # no hit, done before: upstream has it now
    STALE = "stale"  # anything else


@dataclass(frozen=True)
class Outcome:
    """One patch on one file: sites per function as stated and as found, and where to look."""

    patch: str
    file: str
    verdict: Verdict
    expected: Mapping[str, int]
    found: Mapping[str, int]
    line: int = 0
    detail: str = ""
    refused: bool = False  # by the patch itself; `detail` says why


def judge(
    file: str,
    pristine: cst.Module,
    module: cst.Module,
    patch: Patch,
    printer: Printer,
    draft: Draft,
) -> tuple[cst.Module, Draft, Outcome]:
    """Module and draft after `patch` if it is CLEAN, and as they were if it is not.

    Every patch runs twice: the second pass proves that nothing is left to do.
    """
    first, second = patch.fresh(), patch.fresh()
    after = draft.copy()
    expected, found = dict(patch.sites[file]), Counter[str]()

    def says(verdict: Verdict, line: int = 0, detail: str = "", refused: bool = False) -> Outcome:
        return Outcome(patch.slug(), file, verdict, expected, dict(found), line, detail, refused)

    def stale(line: int, detail: str, refused: bool = False) -> tuple[cst.Module, Draft, Outcome]:
        return module, draft, says(Verdict.STALE, line, detail, refused)

    try:
        edited = apply_once(module, first, printer, after)
        found.update(function for function, _ in first.hits)
        apply_once(edited, second, printer, draft.copy(), seen=module.body)
    except Refused as refused:
        found = Counter(function for function, _ in first.hits)
        line = refused.line or _line(pristine, refused.node, first.function)
        return stale(line, refused.why, refused=True)
    if not found and first.already_done:
        return module, draft, says(Verdict.OBSOLETE)
    if found != expected:
        return stale(*_where(pristine, patch, expected, found))
    if first.already_done:
        return stale(0, "the edit is already there, and more to edit: is upstream half patched?")
    if second.hits:
        more = _shown(edited, *second.hits[0])
        return stale(0, f"{FAULT}a second pass would edit {len(second.hits)} more, {more}")
    if not second.already_done:
        return stale(0, f"{FAULT}`done` does not see the edit")
    return edited, after, says(Verdict.CLEAN)


# Where to look in upstream.  Positions are dear, so only an error pays for them.


def _lines(pristine: cst.Module) -> Mapping[cst.CSTNode, int]:
    from libcst.metadata import MetadataWrapper, PositionProvider

    found = MetadataWrapper(pristine, unsafe_skip_copy=True).resolve(PositionProvider)
    return {node: place.start.line for node, place in found.items()}


def _line(pristine: cst.Module, node: cst.CSTNode | None, function: str) -> int:
    """The line of a node, or else of the function around it; 0 if upstream has neither."""
    lines, functions = _lines(pristine), dict(_functions(pristine))
    around = functions.get(function) if function != MODULE else None
    return next((lines[place] for place in (node, around) if place and place in lines), 0)


def _where(
    pristine: cst.Module, patch: Patch, expected: Mapping[str, int], found: Mapping[str, int]
) -> tuple[int, str]:
    """A line of the upstream file to look at, and what stands there.

    First the hits that should not be, then the functions that should hold one.
    """
    lines, functions, alone = _lines(pristine), dict(_functions(pristine)), patch.fresh()
    with contextlib.suppress(Refused):
        apply_once(pristine, alone, Printer())
    for function, node in alone.hits:
        if found.get(function, 0) > expected.get(function, 0):
            return lines[node], _shown(pristine, function, node)
    for function, count in expected.items():
        if found.get(function, 0) < count:
            if function not in functions:
                return 0, f"there is no function {function}"
            line = 0 if function == MODULE else lines[functions[function]]
            return line, f"nothing to edit in {function}"
    return 0, ""


def _shown(module: cst.Module, function: str, node: cst.CSTNode) -> str:
    code = " ".join(module.code_for_node(node).split())
    return f"in {function}: {code if len(code) <= 100 else code[:97] + '...'}"


def _functions(node: cst.CSTNode, scope: tuple[str, ...] = ()) -> Iterable[tuple[str, cst.CSTNode]]:
    """Every function and class, and the module, by the name that `Patch.function` gives it."""
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        scope = (*scope, node.name.value)
    if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Module)):
        yield ".".join(scope) or MODULE, node
    for child in node.children:
        yield from _functions(child, scope)
