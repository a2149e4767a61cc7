"""What has become of the code that a stale patch edits: the old statements, the nearest new ones.

Pure, and asked only if a patch is stale, since positions cost more than everything else.  The two
texts are aligned function by function, so a statement that is in both is never offered as what
another one has become.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from patcher.core import single_pass
from patcher.core.draft import Refused
from patcher.core.patch import Patch
from patcher.tree.names import MODULE

ALIKE = 0.5  # of 1: below this, two statements have nothing to do with each other
SHOWN = 6  # statements a patch and file: whoever adapts the patch reads the rest in the code


@dataclass(frozen=True)
class Statement:
    """One statement, or the head of a compound one.  `line` counts from 1."""

    function: str
    line: int
    text: str  # its lines, as indented, without line ends
    code: str = field(default="", compare=False)  # without layout, comments and choice of quotes

    @property
    def tokens(self) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", self.code)


Pairs = Mapping[Statement, Statement]  # the statements that are in both texts: old to new


@dataclass(frozen=True)
class Trace:
    """A statement of the old text and what it has become; one of the two may be None."""

    old: Statement | None
    new: Statement | None

    @property
    def fate(self) -> str:
        """`changed`: there is one like it, which the patch does not edit; `gone`: there is none.

        `new`: the patch would edit it, and it was not there, or was not edited.
        """
        return "new" if self.old is None else "gone" if self.new is None else "changed"


class Statements:
    """A script by its statements, and which of them a patch edits; one that the engine takes."""

    def __init__(self, file: str, source: bytes):
        from libcst.metadata import MetadataWrapper, PositionProvider

        self.statements = list(_statements(source))
        self._module = single_pass.parse(file, source, single_pass.Printer())
        wrapper = MetadataWrapper(self._module, unsafe_skip_copy=True)
        self._positions = wrapper.resolve(PositionProvider)

    def edited_by(self, patch: Patch) -> Counter[Statement]:
        """In how many places `patch` alone would edit a statement; in the order of the text."""
        nodes = [node for _, node in self._hits(patch) if node in self._positions]
        found: Counter[Statement] = Counter()
        for line in sorted(self._positions[node].start.line for node in nodes):
            found[max((s for s in self.statements if s.line <= line), key=lambda s: s.line)] += 1
        return found

    def sites(self, patch: Patch) -> Counter[str]:
        """How many places it alone would edit in which function."""
        return Counter(function for function, _ in self._hits(patch))

    def _hits(self, patch: Patch) -> Sequence[tuple[str, cst.CSTNode]]:
        alone = patch.fresh()
        with contextlib.suppress(Refused):
            single_pass.apply_once(self._module, alone, single_pass.Printer())
        return alone.hits


def traces(old: Statements, new: Statements, patch: Patch) -> list[Trace]:
    """What the statements that `patch` edits in `old` have become, and what it edits in `new` only.

    Statements that the patch edits in both are left out: they are not why it is stale.
    """
    same = _aligned(old.statements, new.statements)
    taken = set(same.values())
    edited = new.edited_by(patch)
    free = [s for s in new.statements if s not in taken]
    found, answered = [], set()
    for site, times in old.edited_by(patch).items():
        left = [s for s in free if s not in answered]
        after = same.get(site) or _nearest(site, left, old, new, same)
        answered.add(after)
        if after is None or edited[after] < times:
            found.append(Trace(site, after))
    return found + [Trace(None, s) for s in edited if s not in answered]


def shown(found: Sequence[Trace], old_file: str, new_file: str) -> list[str]:
    """Traces as lines in the manner of a diff, each under the places that it speaks of."""
    lines = []
    for trace in found[:SHOWN]:
        old, new = trace.old, trace.new
        place = f"{old_file}:{old.line} in {old.function}" if old else ""
        if old and new:
            moved = f" in {new.function}" if new.function != old.function else ""
            lines.append(f"{place}, now {new_file}:{new.line}{moved}:")
            lines += _excerpt(old.text, new.text)
        elif old:
            lines.append(f"{place}, gone: nothing in {new_file} is like it:")
            lines += [f"- {line}" for line in old.text.split("\n")]
        elif new:
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
            last = node.end_lineno
            if blocks:
                last = max(node.lineno, min(block[0].lineno for block in blocks) - 1)
            text = lines[node.lineno - 1 : last]
            while blocks and len(text) > 1 and re.fullmatch(r"\s*(#.*)?", text[-1]):
                text.pop()  # what stands above the first line of the body
            yield Statement(".".join(inner) or MODULE, node.lineno, "\n".join(text), _head(node))
            for block in blocks:
                yield from visit(block, inner)

    yield from visit(ast.parse(source).body, ())


BLOCKS = ("body", "orelse", "finalbody")  # of statements
PARTS = ("handlers", "cases")  # which have a body each


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in BLOCKS:
        if isinstance(block := getattr(node, name, None), list):
            yield block
    for name in PARTS:
        yield from (part.body for part in getattr(node, name, ()))


def _head(node: ast.stmt) -> str:
    """The code of a statement without the blocks in it."""
    if not hasattr(node, "body"):
        return ast.unparse(node)
    node = copy.copy(node)
    for name in (*BLOCKS, *PARTS):
        if isinstance(getattr(node, name, None), list):
            setattr(node, name, [ast.Pass()] if name in ("body", "finalbody") else [])
    return ast.unparse(node).removesuffix("pass").rstrip()


def _aligned(old: Sequence[Statement], new: Sequence[Statement]) -> Pairs:
    """The statements that are in both texts, by function and in order; layout does not count."""
    pairs: dict[Statement, Statement] = {}
    there = _by_function(new)
    for function, olds in _by_function(old).items():
        news = there.get(function, [])
        codes = [s.code for s in olds], [s.code for s in news]
        for a, b, size in difflib.SequenceMatcher(None, *codes, False).get_matching_blocks():
            pairs |= zip(olds[a : a + size], news[b : b + size])
    return pairs


def _nearest(
    site: Statement, free: Sequence[Statement], old: Statements, new: Statements, same: Pairs
) -> Statement | None:
    """The statement of `free` that is most like it: in its function if any is, else anywhere."""
    between = _between(site, old, new, same)
    for here in (True, False):
        near = [s for s in free if (s.function == site.function) is here]
        scores = {s: _likeness(site, s) + (0.3 if s in between else 0) for s in near}
        best = max(near, key=lambda s: scores[s], default=None)
        if best and scores[best] >= ALIKE:
            return best
    # What stands alone in the place of a statement has come in its place, however it looks.
    return next((s for s in between if s in free), None) if len(between) == 1 else None


def _between(site: Statement, old: Statements, new: Statements, same: Pairs) -> set[Statement]:
    """The statements of the new text between what the neighbours of `site` have become."""
    olds = _by_function(old.statements)[site.function]
    news = _by_function(new.statements).get(site.function, [])
    at = olds.index(site)
    before = next((same[s] for s in reversed(olds[:at]) if s in same), None)
    after = next((same[s] for s in olds[at + 1 :] if s in same), None)
    start = news.index(before) + 1 if before else 0
    return set(news[start : news.index(after) if after else len(news)])


def _likeness(a: Statement, b: Statement) -> float:
    """How alike two statements are, from 0 to 1, by tokens; what they assign to counts for more."""
    left, right = a.tokens, b.tokens
    shared = (Counter(left) & Counter(right)).total()
    if 2 * shared < 0.05 * (len(left) + len(right)):
        return 0.0
    ratio = difflib.SequenceMatcher(None, left, right, False).ratio()
    assigns = left[:2] == right[:2] and left[1:2] == ["="]
    return min(1.0, ratio + (0.15 if assigns else 0))


def _by_function(statements: Sequence[Statement]) -> dict[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    for statement in statements:
        found.setdefault(statement.function, []).append(statement)
    return found
