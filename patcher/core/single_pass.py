"""One pass of one patch over a script that has been parsed."""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections import Counter
from collections.abc import Sequence

import libcst as cst

from patcher.core.draft import Draft
from patcher.core.patch import Patch
from patcher.core.problem import Problem
from patcher.core.text import compile_check, encoding_of, unreadable
from patcher.tree import syntax


class Printer:
    """The text of statements, each printed once: a series changes few of them."""

    def __init__(self) -> None:
        # By id; the node is kept, so that its id stays its own.
        self._texts: dict[int, tuple[cst.CSTNode, str]] = {}

    def text(self, module: cst.Module, node: cst.CSTNode) -> str:
        if id(node) not in self._texts:
            self._texts[id(node)] = (node, module.code_for_node(node))
        return self._texts[id(node)][1]

    def code(self, module: cst.Module) -> str:
        """What `module.code` gives."""
        nodes = (*module.header, *module.body, *module.footer)
        text = "".join(self.text(module, node) for node in nodes)
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
        both = enumerate(zip(source, printed))
        at = next((i for i, (a, b) in both if a != b), min(len(source), len(printed)))
        hint = "Look there for a lone carriage return or another control character; take it out."
        message = "LibCST does not print this file as it read it"
        raise Problem(message, file=file, line=source.count(b"\n", 0, at) + 1, hint=hint, code=2)
    return module


def apply_once(
    module: cst.Module,
    patch: Patch,
    printer: Printer,
    draft: Draft | None = None,
    seen: Sequence[cst.CSTNode] = (),
) -> cst.Module:
    """One pass of `patch` over all statements but `seen`.

    The patch keeps what it finds in `hits` and `already_done`, and what it asks for beside its
    edits in `draft`.  Raises Refused if it cannot edit what it sees, or if a comment would be
    lost that is not in `patch.drops`.
    """
    patch.module, patch.text = module, functools.partial(printer.text, module)
    patch.draft = draft or Draft(printer.bytes(module))
    needles = [needle.decode("ascii") for needle in patch.needles]
    skip = {id(node) for node in seen}
    body: list[cst.CSTNode] = []
    for statement in module.body:
        text = "" if id(statement) in skip else printer.text(module, statement)
        if not any(needle in text for needle in needles):
            body.append(statement)
            continue
        before = len(patch.hits)
        result = syntax.walk(statement, patch)
        assert len(patch.hits) > before or result is statement, patch.slug()
        made = syntax.parts(statement, result, patch.drops)
        if result is not statement:
            left = "".join(printer.text(module, node) for node in made)
            if lost := _lost_comment(text, left, patch.drops):
                patch.refuse(f"its edit would lose the comment {lost!r}", patch.hits[before][1])
        body.extend(made)
    if not patch.hits:
        return module
    body, comments = syntax.spaced(body)
    return module.with_changes(body=body, footer=[*comments, *module.footer])


def _lost_comment(before: str, after: str, drops: Sequence[str]) -> str | None:
    """A comment of `before` that neither `after` nor `drops` has; None if there is none."""
    lost: Counter[str] = Counter()
    for comments in (_hashes, _comments):  # to tell a comment from a string is slow
        lost = Counter(comments(before)) - Counter([*comments(after), *drops])
        if not lost:
            return None
    return next(iter(lost))


def _hashes(text: str) -> list[str]:
    return [found.rstrip() for found in re.findall("#.*", text)] if "#" in text else []


def _comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string.rstrip() for token in tokens if token.type == tokenize.COMMENT]
