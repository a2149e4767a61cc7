"""What has become of the code that a stale patch edits: its statements of old, and the nearest ones in the new text.

Pure, and asked only where a patch is stale, since positions cost more than everything else.  The two texts are
aligned function by function, so a statement that stands in both is never offered as what another one has become.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import difflib
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from patcher.core import engine
from patcher.core.draft import Refused
from patcher.core.patch import Patch
from patcher.tree.names import MODULE

ALIKE = 0.5  # of 1: below this, two statements have nothing to do with each other
SHOWN = 6  # statements a patch and file: whoever adapts the patch reads the rest in the code


class Fate(Enum):
    """What has become of a statement that a patch edits."""

    CHANGED = "changed"  # there is one like it, which the patch does not edit
    GONE = "gone"  # there is none like it
    NEW = "new"  # the patch would edit it, and it was not there, or was not edited


@dataclass(frozen=True)
class Statement:
    """One statement, or the head of a compound one, by the name of its function and its lines, which count from 1."""

    function: str
    line: int
    text: str  # its lines, as indented, without line ends
    code: str = field(
        default="", compare=False
    )  # without layout, comments and the choice of quotes

    @property
    def tokens(self) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", self.code)


@dataclass(frozen=True)
class Trace:
    """A statement of the old text with what it has become; one of the two is None where the other stands alone."""

    fate: Fate
    old: Statement | None
    new: Statement | None


class Statements:
    """A script by its statements, and which of them a patch edits.  `source` has to be one that the engine takes."""

    def __init__(self, file: str, source: bytes):
        from libcst.metadata import MetadataWrapper, PositionProvider

        self.file = file
        self.statements = list(_statements(source))
        self._module = engine.parse(file, source, engine.Printer())
        self._positions = MetadataWrapper(self._module, unsafe_skip_copy=True).resolve(
            PositionProvider
        )

    def edited_by(self, patch: Patch) -> Counter[Statement]:
        """In how many places `patch`, by itself, would edit a statement; in the order of the text."""
        hits = self._hits(patch)
        lines = [self._positions[node].start.line for _, node in hits if node in self._positions]
        return Counter(self._at(line) for line in sorted(lines))

    def sites(self, patch: Patch) -> Counter[str]:
        """How many places it would edit in which function, by itself."""
        return Counter(function for function, _ in self._hits(patch))

    def _hits(self, patch: Patch) -> list:
        alone = patch.fresh()
        with contextlib.suppress(Refused):
            engine.apply_once(self._module, alone, engine.Printer())
        return alone.hits

    def _at(self, line: int) -> Statement | None:
        return max(
            (s for s in self.statements if s.line <= line), key=lambda s: s.line, default=None
        )


def traces(old: Statements, new: Statements, patch: Patch) -> list[Trace]:
    """What has become of the statements that `patch` edits in `old`, and which ones it would edit in `new` beside them.

    Statements that the patch edits in both are left out: they are not why it is stale.
    """
    same = _aligned(old.statements, new.statements)
    taken = set(same.values())
    edited = new.edited_by(patch)
    free = [s for s in new.statements if s not in taken]
    found, answered = [], set()
    for site, times in old.edited_by(patch).items():
        after = same.get(site) or _nearest(
            site, [s for s in free if s not in answered], old, new, same
        )
        answered.add(after)
        if after is None:
            found.append(Trace(Fate.GONE, site, None))
        elif edited[after] < times:
            found.append(Trace(Fate.CHANGED, site, after))
    return found + [Trace(Fate.NEW, None, s) for s in edited if s not in answered]


def shown(found: Sequence[Trace], old_file: str, new_file: str) -> list[str]:
    """Traces as lines in the manner of a diff, each under the places that it speaks of."""
    lines = []
    for trace in found[:SHOWN]:
        old, new = trace.old, trace.new
        if trace.fate is Fate.CHANGED:
            moved = f" in {new.function}" if new.function != old.function else ""
            lines.append(
                f"{old_file}:{old.line} in {old.function}, now {new_file}:{new.line}{moved}:"
            )
            lines += _excerpt(old.text, new.text)
        elif trace.fate is Fate.GONE:
            lines.append(
                f"{old_file}:{old.line} in {old.function}, gone: nothing in {new_file} is like it:"
            )
            lines += [f"- {line}" for line in old.text.split("\n")]
        else:
            lines.append(f"{new_file}:{new.line} in {new.function}, not edited in {old_file}:")
            lines += [f"+ {line}" for line in new.text.split("\n")]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    return lines


def _excerpt(old: str, new: str) -> Iterator[str]:
    """The lines of two texts that differ, with a line around them."""
    if old == new:
        yield from (f"  {line}" for line in new.split("\n"))
        yield "  (unchanged: something around it has changed)"
        return
    diff = difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=1)
    for number, line in enumerate(itertools.islice(diff, 2, None)):
        if not line.startswith("@@"):
            yield f"{line[0]} {line[1:]}"
        elif number:
            yield "  ..."


def _statements(source: bytes) -> Iterator[Statement]:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    lines = [line.removesuffix("\r") for line in source.decode(encoding).split("\n")]

    def visit(body: Sequence[ast.stmt], scope: tuple[str, ...]) -> Iterator[Statement]:
        for node in body:
            inner = scope
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = (*scope, node.name)
            blocks = [block for block in _blocks(node) if block]
            last = (
                max(node.lineno, min(block[0].lineno for block in blocks) - 1)
                if blocks
                else node.end_lineno
            )
            text = lines[node.lineno - 1 : last]
            while blocks and len(text) > 1 and re.fullmatch(r"\s*(#.*)?", text[-1]):
                text.pop()  # what stands above the first line of the body
            yield Statement(".".join(inner) or MODULE, node.lineno, "\n".join(text), _head(node))
            for block in blocks:
                yield from visit(block, inner)

    yield from visit(ast.parse(source).body, ())


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _head(node: ast.stmt) -> str:
    """The code of a statement without the blocks in it."""
    node = copy.copy(node)
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        if isinstance(getattr(node, name, None), list):
            setattr(node, name, [ast.Pass()] if name in ("body", "finalbody") else [])
    return (
        ast.unparse(node).removesuffix("pass").rstrip()
        if hasattr(node, "body")
        else ast.unparse(node)
    )


def _aligned(old: Sequence[Statement], new: Sequence[Statement]) -> dict[Statement, Statement]:
    """The statements that stand in both texts, function by function and in order; layout does not count."""
    pairs, there = {}, _by_function(new)
    for function, olds in _by_function(old).items():
        news = there.get(function, [])
        matcher = difflib.SequenceMatcher(
            None, *([s.code for s in side] for side in (olds, news)), False
        )
        for a, b, size in matcher.get_matching_blocks():
            pairs |= zip(olds[a : a + size], news[b : b + size])
    return pairs


def _nearest(
    site: Statement, free: Sequence[Statement], old: Statements, new: Statements, same: dict
) -> Statement | None:
    """The most similar of `free`: in the function of the same name if there is one that is alike, else anywhere."""
    between = _between(site, old, new, same)
    for here in (True, False):
        best, score = None, ALIKE
        for candidate in free:
            if (candidate.function == site.function) is here:
                found = _likeness(site, candidate) + (0.3 if candidate in between else 0)
                if found > score or (best is None and found == score):
                    best, score = candidate, found
        if best:
            return best
    # What stands alone in the place of a statement has come in its place, however it looks.
    return next(iter(between)) if len(between) == 1 and next(iter(between)) in free else None


def _between(site: Statement, old: Statements, new: Statements, same: dict) -> set[Statement]:
    """The statements of the new text that stand between what has become of the neighbours of `site`."""
    olds = _by_function(old.statements)[site.function]
    news = _by_function(new.statements).get(site.function, [])
    at = olds.index(site)
    before = next((same[s] for s in reversed(olds[:at]) if s in same), None)
    after = next((same[s] for s in olds[at + 1 :] if s in same), None)
    start = news.index(before) + 1 if before else 0
    return set(news[start : news.index(after) if after else len(news)])


def _likeness(a: Statement, b: Statement) -> float:
    """How alike two statements are, from 0 to 1, token by token; what they assign to counts for more."""
    left, right = a.tokens, b.tokens
    shared = sum((Counter(left) & Counter(right)).values())
    if 2 * shared < (ALIKE - 0.45) * (len(left) + len(right)):
        return 0.0
    ratio = difflib.SequenceMatcher(None, left, right, False).ratio()
    assigns = (
        len(left) > 1 and len(right) > 1 and left[1] == right[1] == "=" and left[0] == right[0]
    )
    return min(1.0, ratio + (0.15 if assigns else 0))


def _by_function(statements: Sequence[Statement]) -> dict[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    for statement in statements:
        found.setdefault(statement.function, []).append(statement)
    return found
