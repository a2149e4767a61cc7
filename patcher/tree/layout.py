"""Continuation lines under the bracket that they belong to, after an edit that moved it."""

from __future__ import annotations

import io
import tokenize
from typing import cast

import libcst as cst

from patcher.tree import syntax


def aligned(pristine: cst.Module, module: cst.Module) -> cst.Module:
    """`module` with the lines of each new or changed statement aligned; all others stay."""
    old = {id(node) for node in pristine.body}
    changed = [node for node in module.body if id(node) not in old]
    if not changed:
        return module
    known = {id(n) for node in pristine.body for n in syntax.descendants(node)}
    new = {id(node): _aligned(module, node, known) for node in changed}
    return module.with_changes(body=[new.get(id(node), node) for node in module.body])


def _aligned(module: cst.Module, node: syntax.Node, known: set[int]) -> syntax.Node:
    if id(node) in known:
        return node
    if isinstance(node, cst.SimpleStatementLine):
        text = module.code_for_node(node.with_changes(leading_lines=()))
        better = realigned(text)
        if better == text:
            return node
        (new,) = syntax.statements(better)
        return cast("syntax.Node", new.with_changes(leading_lines=node.leading_lines))
    changes: dict[str, cst.CSTNode] = {}
    for name in syntax.BLOCKS:
        block = getattr(node, name, None)
        if isinstance(block, cst.IndentedBlock):
            body = [_aligned(module, line, known) for line in block.body]
            if any(new is not line for new, line in zip(body, block.body)):
                changes[name] = block.with_changes(body=body)
        elif isinstance(block, cst.CSTNode):
            inner = _aligned(module, block, known)
            if inner is not block:
                changes[name] = inner
    return node.with_changes(**changes) if changes else node


def realigned(text: str) -> str:
    """The text of a statement, each line under the first thing in its bracket.

    If a bracket ends its line, what is in it keeps its distance to the line of the bracket.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").split("\n")
    every = tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)
    tokens = [token for token in every if token.string.strip()]
    shift = [0] * (len(lines) + 1)
    brackets: list[tuple[int | None, int]] = []  # the column of what is in it, if any; its shift
    row = 1
    for token, following in zip(tokens, [*tokens[1:], None]):
        (first, start), (last, end) = token.start, token.end
        if first > row and brackets:
            column, moved = brackets[-1]
            shift[first] = moved if column is None or token.string in ")]}" else column - start
        row = max(row, last)  # a string over several lines stays as it is
        if token.type == tokenize.OP and token.string in "([{":
            ends = following is None or following.start[0] > last
            brackets.append((None if ends else end + shift[last], shift[last]))
        elif token.type == tokenize.OP and token.string in ")]}" and brackets:
            brackets.pop()
    for at, line in enumerate(lines):
        by = shift[at + 1]
        lines[at] = " " * by + line if by > 0 else line[-by:]
    return newline.join(lines)
