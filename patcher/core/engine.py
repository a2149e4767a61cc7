"""The engine: bytes and a series in, bytes and outcomes out.

Pure: it knows no paths, prints nothing and starts no process.  A file is parsed
once, a patch visits only the top-level statements that can concern it, and every
patch runs twice: the first pass edits, the second proves that nothing is left to do.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import libcst as cst

from patcher.core.draft import Draft, Refused
from patcher.core.patch import Patch
from patcher.core.problem import Problem
from patcher.core.text import compile_check, encoding_of, unreadable
from patcher.tree import layout, syntax, unused
from patcher.tree.names import MODULE


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


@dataclass(frozen=True)
class Rendered:
    """A file before and after a series; where any outcome is STALE, `after` lacks that patch and must not be used."""

    file: str
    before: bytes
    after: bytes
    outcomes: tuple[Outcome, ...]
    support: tuple[str, ...] = ()  # the modules of `patches/support/` that it reaches

    @property
    def stale(self) -> bool:
        return any(outcome.verdict is Verdict.STALE for outcome in self.outcomes)


def render(
    file: str, source: bytes, patches: Sequence[Patch], support: Mapping[str, bytes] | None = None
) -> Rendered:
    """Apply to `source` those of `patches` that name `file` in their sites, in this order.

    `support` is what patches may let the script import: the modules of `patches/support/`, by name.

    Raises Problem where the source cannot be parsed, where LibCST would not give its bytes
    back unchanged, and where the result does not compile.
    """
    concerned = [patch for patch in patches if file in patch.sites]
    if not concerned:
        compile_check(file, source)
        return Rendered(file, source, source, ())
    printer = Printer()
    pristine = module = parse(file, source, printer)
    outcomes, draft = [], Draft(source, support)
    for patch in concerned:
        module, draft, outcome = _judge(file, pristine, module, patch, printer, draft)
        outcomes.append(outcome)
    after = printer.bytes(finish(pristine, module, draft, printer))
    try:
        compile_check(file, after)
    except Problem as problem:
        names = ", ".join(patch.slug() for patch in concerned)
        raise Problem(
            f"what the patches make of it does not compile: {problem.message}",
            file=file,
            hint=f"Upstream is fine; look at what these insert: {names}.",
        ) from None
    return Rendered(file, source, after, tuple(outcomes), draft.reached())


def finish(
    pristine: cst.Module, module: cst.Module, draft: Draft, printer: Printer | None = None
) -> cst.Module:
    """What a series leaves to the engine: imports and options, what has become unused, and the layout."""
    code = (printer or Printer()).code
    return layout.aligned(pristine, unused.removed(pristine, draft.finish(module), code))


class Printer:
    """The text of statements, each printed once: a series changes few of them."""

    def __init__(self):
        self._texts: dict[
            int, tuple[cst.CSTNode, str]
        ] = {}  # the node is kept, so that its id stays its own

    def text(self, module: cst.Module, node: cst.CSTNode) -> str:
        if id(node) not in self._texts:
            self._texts[id(node)] = (node, module.code_for_node(node))
        return self._texts[id(node)][1]

    def code(self, module: cst.Module) -> str:
        """What `module.code` gives."""
        text = "".join(
            self.text(module, node) for node in (*module.header, *module.body, *module.footer)
        )
        return text if module.has_trailing_newline else text.removesuffix(module.default_newline)

    def bytes(self, module: cst.Module) -> bytes:
        """What `module.bytes` gives."""
        return self.code(module).encode(module.encoding)


def parse(file: str, source: bytes, printer: Printer) -> cst.Module:
    """The module, if printing it gives exactly the bytes that it was parsed from."""
    encoding_of(file, source)
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        compile_check(file, source)  # Python words it better and says where
        raise unreadable(file, error.raw_line, 0, error.message.partition("\n")[0]) from None
    printed = printer.bytes(module)
    if printed != source:
        at = next(
            (i for i, (a, b) in enumerate(zip(source, printed)) if a != b),
            min(len(source), len(printed)),
        )
        raise Problem(
            "LibCST does not print this file as it read it",
            file=file,
            line=source.count(b"\n", 0, at) + 1,
            hint="Look there for a lone carriage return or another control character and take it out.",
            code=2,
        )
    return module


def apply_once(
    module: cst.Module, patch: Patch, printer: Printer, seen: Sequence[cst.CSTNode] = ()
) -> cst.Module:
    """One pass of `patch` over all statements but `seen`; the patch keeps its findings in `hits` and `already_done`.

    What it asks for beside its edits goes to `patch.draft`.  Raises Refused where it cannot edit what it sees,
    or where a comment would be lost that is not in `patch.drops`.
    """
    patch.module, patch.text = module, functools.partial(printer.text, module)
    patch.draft = patch.draft or Draft(printer.bytes(module))
    needles = [needle.decode("ascii") for needle in patch.needles]
    skip = {id(node) for node in seen}
    body: list[cst.BaseStatement] = []
    for statement in module.body:
        if id(statement) in skip or not any(
            needle in printer.text(module, statement) for needle in needles
        ):
            body.append(statement)
            continue
        before = len(patch.hits)
        result = syntax.walk(statement, patch)
        assert len(patch.hits) > before or result is statement, patch.slug()
        made = syntax.parts(statement, result, patch.drops)
        if result is not statement:
            left = "".join(printer.text(module, node) for node in made)
            lost = _lost_comment(printer.text(module, statement), left, patch.drops)
            if lost:
                patch.refuse(f"its edit would lose the comment {lost!r}", patch.hits[before][1])
        body.extend(made)
    if not patch.hits:
        return module
    body, left = syntax.spaced(body)
    return module.with_changes(body=body, footer=[*left, *module.footer])


def _lost_comment(before: str, after: str, drops: Sequence[str]) -> str | None:
    """A comment of `before` that neither `after` nor `drops` has; None if there is none."""
    for comments in (
        _hashes,
        _comments,
    ):  # to tell a comment from a string is slow, and seldom needed
        lost = Counter(comments(before)) - Counter([*comments(after), *drops])
        if not lost:
            return None
    return next(iter(lost))


def _hashes(text: str) -> list[str]:
    return [found.rstrip() for found in re.findall("#.*", text)] if "#" in text else []


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string.rstrip() for token in tokens if token.type == tokenize.COMMENT]


def mark(source: bytes, text: str) -> bytes:
    """Put `# text` on the first line where a comment may stand: behind a BOM, a `#!` line and an encoding cookie."""
    bom = b"\xef\xbb\xbf" if source.startswith(b"\xef\xbb\xbf") else b""
    lines = source[len(bom) :].split(b"\n", 2)
    taken = 1 if lines[0].startswith(b"#!") else 0
    for index, line in enumerate(lines[:2]):
        if re.match(rb"[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+", line):
            taken = index + 1
        elif not re.match(rb"[ \t\f]*(#.*)?\r?$", line):
            break  # below code a cookie does not count
    newline = b"\r\n" if lines[0].endswith(b"\r") else b"\n"
    head = b"".join(line + b"\n" for line in lines[:taken])
    return bom + head + b"# " + text.encode("ascii") + newline + b"\n".join(lines[taken:])


def _judge(
    file: str,
    pristine: cst.Module,
    module: cst.Module,
    patch: Patch,
    printer: Printer,
    draft: Draft,
) -> tuple[cst.Module, Draft, Outcome]:
    """The truth table: module and draft after `patch` where it is CLEAN, as they were where it is not."""
    first, second = patch.fresh(), patch.fresh()
    first.draft, second.draft = draft.copy(), draft.copy()
    expected, found = dict(patch.sites[file]), {}

    def outcome(
        verdict: Verdict, line: int = 0, detail: str = "", refused: bool = False
    ) -> Outcome:
        return Outcome(patch.slug(), file, verdict, expected, found, line, detail, refused)

    try:
        edited = apply_once(module, first, printer)
        found.update(Counter(function for function, _ in first.hits))
        apply_once(edited, second, printer, seen=module.body)
    except Refused as refused:
        found.update(Counter(function for function, _ in first.hits))
        line = refused.line or _line(pristine, refused.node, first.function)
        return module, draft, outcome(Verdict.STALE, line, refused.why, True)
    if not found and first.already_done:
        return module, draft, outcome(Verdict.OBSOLETE)
    if found != expected:
        return module, draft, outcome(Verdict.STALE, *_where(pristine, patch, expected, found))
    if first.already_done:
        half = "the edit is already there, and there is more to edit: is upstream half patched?"
        return module, draft, outcome(Verdict.STALE, detail=half)
    if second.hits or not second.already_done:
        left = (
            f"a second pass would edit {len(second.hits)} more"
            if second.hits
            else "`done` does not see the edit"
        )
        return module, draft, outcome(Verdict.STALE, detail=f"a fault of the patch itself: {left}")
    return edited, first.draft, outcome(Verdict.CLEAN)


def _positions(pristine: cst.Module):
    """Positions cost more than everything else in this module, so only an error pays for them."""
    from libcst.metadata import MetadataWrapper, PositionProvider

    return MetadataWrapper(pristine, unsafe_skip_copy=True).resolve(PositionProvider)


def _line(pristine: cst.Module, node: cst.CSTNode | None, function: str) -> int:
    """The line of a node, or else of the function around it; 0 if upstream has neither."""
    positions = _positions(pristine)
    for place in (node, dict(_functions(pristine)).get(function) if function != MODULE else None):
        if place in positions:
            return positions[place].start.line
    return 0


def _where(
    pristine: cst.Module, patch: Patch, expected: Mapping[str, int], found: Mapping[str, int]
) -> tuple[int, str]:
    """A line of the upstream file to look at, and what stands there.

    First the hits that should not be, then the functions that should hold one.
    """
    positions, alone = _positions(pristine), patch.fresh()
    with contextlib.suppress(Refused):
        apply_once(pristine, alone, Printer())
    for function, node in alone.hits:
        if found.get(function, 0) > expected.get(function, 0):
            return positions[
                node
            ].start.line, f"in {function}: {_one_line(pristine.code_for_node(node))}"
    functions = dict(_functions(pristine))
    for function, count in expected.items():
        if found.get(function, 0) < count:
            if function not in functions:
                return 0, f"there is no function {function}"
            line = 0 if function == MODULE else positions[functions[function]].start.line
            return line, f"nothing to edit in {function}"
    return 0, ""


def _functions(node: cst.CSTNode, scope: tuple[str, ...] = ()) -> Iterable[tuple[str, cst.CSTNode]]:
    """Every function and class, and the module, by the name that `Patch.function` gives it."""
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        scope = (*scope, node.name.value)
    if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Module)):
        yield ".".join(scope) or MODULE, node
    for child in node.children:
        yield from _functions(child, scope)


def _one_line(code: str) -> str:
    code = " ".join(code.split())
    return code if len(code) <= 100 else code[:97] + "..."
