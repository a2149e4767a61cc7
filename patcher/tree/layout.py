"""Continuation lines under the bracket that they belong to: an edit that makes a line longer moves its bracket."""

from __future__ import annotations

import io
import tokenize

import libcst as cst

from patcher.tree import syntax


def aligned(pristine: cst.Module, module: cst.Module) -> cst.Module:
    """`module` with the lines of each new or changed statement aligned; all others stay as they are."""
    old = {id(node) for node in pristine.body}
    changed = [node for node in module.body if id(node) not in old]
    if not changed:
        return module
    known = {id(n) for node in pristine.body for n in syntax.descendants(node)}
    new = {id(node): _aligned(module, node, known) for node in changed}
    return module.with_changes(body=[new.get(id(node), node) for node in module.body])


def _aligned(module: cst.Module, node: cst.CSTNode, known: set[int]) -> cst.CSTNode:
    if id(node) in known:
        return node
    if isinstance(node, cst.SimpleStatementLine):
        text = module.code_for_node(node.with_changes(leading_lines=()))
        better = realigned(text)
        return (
            node
            if better == text
            else syntax.statements(better)[0].with_changes(leading_lines=node.leading_lines)
        )
    changes = {}
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, cst.IndentedBlock):
            body = [_aligned(module, line, known) for line in block.body]
            if any(a is not b for a, b in zip(body, block.body)):
                changes[name] = block.with_changes(body=body)
        elif (
            isinstance(block, cst.CSTNode)
            and (inner := _aligned(module, block, known)) is not block
        ):
            changes[name] = inner
    return node.with_changes(**changes) if changes else node


def realigned(text: str) -> str:
    """The text of a statement whose lines stand under the first thing in their bracket, if that has one on its line."""
    lines, newline = text.replace("\r\n", "\n").split("\n"), "\r\n" if "\r\n" in text else "\n"
    tokens = [
        t
        for t in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)
        if t.string.strip()
    ]
    shift = [0] * (len(lines) + 1)
    brackets: list[
        tuple[int | None, int]
    ] = []  # the column of what is in it, None where it ends its line; its shift
    row = 1
    for token, following in zip(tokens, [*tokens[1:], None]):
        if token.start[0] > row and brackets:
            row = token.start[0]
            column, moved = brackets[-1]
            shift[row] = (
                moved if column is None or token.string in ")]}" else column - token.start[1]
            )
        row = max(row, token.end[0])  # a string over several lines stays as it is
        if token.type == tokenize.OP and token.string in "([{":
            ends = following is None or following.start[0] > token.end[0]
            here = shift[token.end[0]]
            brackets.append((None if ends else token.end[1] + here, here))
        elif token.type == tokenize.OP and token.string in ")]}" and brackets:
            brackets.pop()
    moved = [
        " " * shift[n] + line if shift[n] > 0 else line[-shift[n] :]
        for n, line in enumerate(lines, 1)
    ]
    return newline.join(moved)
