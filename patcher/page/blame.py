"""Which patch a line of a build comes from, and which took a line of upstream away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain, groupby, zip_longest
from typing import Literal

from patcher.core import engine
from patcher.core.draft import Draft
from patcher.core.patch import Patch
from patcher.core.single_pass import Printer, parse
from patcher.core.truth import judge

Names = tuple[str, ...]  # of patches, in the order of the series
ENGINE = "patcher"  # what no patch asks for: the line that marks a file as generated
ALIKE = 0.6  # two lines that are one line, edited


@dataclass(frozen=True)
class Line:
    """A line with its number, and the patches that it comes from or that took it away."""

    number: int
    text: str
    names: Names = ()


Pair = tuple[Line | None, Line | None]  # upstream's, the build's


@dataclass(frozen=True)
class Block:
    """Pairs of lines: a change, the same lines near one, or the same lines far from any."""

    kind: Literal["changed", "near", "far"]
    pairs: Sequence[Pair]


def stages(
    file: str, source: bytes, patches: Sequence[Patch], support: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    """Each patch of the script, and the script after it; one that is not clean changes nothing."""
    printer = Printer()
    pristine = module = parse(file, source, printer)
    draft = Draft(source, support)
    for patch in patches:
        if file in patch.sites:
            module, draft, _ = judge(file, pristine, module, patch, printer, draft)
            yield patch.slug(), printer.bytes(engine.finish(pristine, module, draft, printer))


def blocks(source: bytes, steps: Sequence[tuple[str, bytes]], context: int = 3) -> list[Block]:
    """Upstream beside what the last step has made of it, and each change with its patches.

    Of lines that nobody has changed, those near a change stand in its block.
    """
    left, right = _blamed(source, steps)
    found: list[tuple[bool, list[Pair]]] = []
    for kind, i, i_end, j, j_end in _opcodes([x.text for x in left], [x.text for x in right]):
        if kind == "equal":
            found.append((False, list(zip(left[i:i_end], right[j:j_end]))))
        else:
            found.append((True, list(_paired(left[i:i_end], right[j:j_end]))))
    return list(_cut(found, context))


def _blamed(source: bytes, steps: Sequence[tuple[str, bytes]]) -> tuple[list[Line], list[Line]]:
    """The lines of upstream with who took them away, and those of the build with who made them."""
    before = _lines(source)
    origins: list[int | None] = list(range(len(before)))  # the line of upstream that one was
    taken: list[list[str]] = [[] for _ in before]
    made: list[Names] = [() for _ in before]
    for name, content in steps:
        after = _lines(content)
        new_origins: list[int | None] = []
        new_made: list[Names] = []
        for kind, i, i_end, j, j_end in _opcodes(before, after):
            if kind == "equal":
                new_origins += origins[i:i_end]
                new_made += made[i:i_end]
                continue
            edited = _edited(before[i:i_end], after[j:j_end])
            for at in range(j_end - j):
                old = edited.get(at)
                new_origins.append(None if old is None else origins[i + old])
                new_made.append((*(() if old is None else made[i + old]), name))
            for origin in origins[i:i_end]:
                if origin is not None:
                    taken[origin].append(name)
        before, origins, made = after, new_origins, new_made
    texts = _lines(source)
    left = [Line(n, *found) for n, found in enumerate(zip(texts, map(tuple, taken)), 1)]
    return left, [Line(n, *found) for n, found in enumerate(zip(before, made), 1)]


def _edited(before: Sequence[str], after: Sequence[str]) -> dict[int, int]:
    """For lines of `after` that are one of `before`, edited: which.  In the same order."""
    found, start = {}, 0
    for at, line in enumerate(after):
        ratios = [
            SequenceMatcher(None, old.strip(), line.strip(), autojunk=False).ratio()
            for old in before[start:]
        ]
        best = max(ratios, default=0)
        if best >= ALIKE:
            found[at] = start + ratios.index(best)
            start = found[at] + 1
    return found


def _paired(left: Sequence[Line], right: Sequence[Line]) -> Iterator[Pair]:
    """Lines of a change side by side: those of the same patches beside each other."""

    def runs(lines: Sequence[Line]) -> list[list[Line]]:
        return [list(same) for _, same in groupby(lines, key=lambda line: line.names)]

    lefts, rights = runs(left), runs(right)
    for _, i, i_end, j, j_end in _opcodes(
        [x[0].names for x in lefts], [y[0].names for y in rights]
    ):
        yield from zip_longest(chain(*lefts[i:i_end]), chain(*rights[j:j_end]))


def _cut(found: Sequence[tuple[bool, list[Pair]]], context: int) -> Iterator[Block]:
    """The blocks; long stretches without a change are cut from the lines around a change."""
    for at, (changed, pairs) in enumerate(found):
        if changed:
            yield Block("changed", pairs)
            continue
        first = context if at else 0
        last = len(pairs) - (context if at + 1 < len(found) else 0)
        if last - first <= context:  # to fold these would save nothing
            yield Block("near", pairs)
            continue
        if first:
            yield Block("near", pairs[:first])
        yield Block("far", pairs[first:last])
        if pairs[last:]:
            yield Block("near", pairs[last:])


def _opcodes(
    before: Sequence[object], after: Sequence[object]
) -> list[tuple[str, int, int, int, int]]:
    return [*SequenceMatcher(None, before, after, autojunk=False).get_opcodes()]


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n").split("\n")
