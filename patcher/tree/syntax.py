"""Predicates over LibCST nodes, values read from them, and a walk that leaves alone what it can.

A handful of our own: they read better in a patch than nested `libcst.matchers`
and spare every run the import of that module, which costs more than LibCST itself.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeGuard, TypeVar, cast

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)
Result = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]
# Every kind of node: to ask `isinstance` takes ten times as long, as LibCST's classes are abstract.
NODES = {
    one for one in vars(cst).values() if isinstance(one, type) and issubclass(one, cst.CSTNode)
}
COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
# Fields that hold no code begin so.
SPACES = ("whitespace", "leading_lines", "lines_", "trailing", "header", "footer", "indent", "new")
PUNCTUATION: tuple[str, ...] = ("lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace")
PUNCTUATION += ("comma", "dot", "semicolon", "equal", "posonly_ind", "asynchronous")
BLOCKS = ("body", "handlers", "orelse", "finalbody")


def is_name(node: cst.CSTNode | None, value: str) -> TypeGuard[cst.Name]:
    return isinstance(node, cst.Name) and node.value == value


def is_method_call(node: cst.CSTNode | None, name: str) -> TypeGuard[cst.Call]:
    """`anything.name(...)`."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == name
    )


def is_call(node: cst.CSTNode | None, dotted: str) -> TypeGuard[cst.Call]:
    """A call of exactly this name, such as `torch.cuda.set_device(...)`."""
    return isinstance(node, cst.Call) and is_dotted(node.func, dotted)


def is_call_of(node: cst.CSTNode | None, name: str) -> TypeGuard[cst.Call]:
    """`name(...)` or `anything.name(...)`: the same class or function, however it was imported."""
    return is_call(node, name) or is_method_call(node, name)


def is_dotted(node: cst.CSTNode | None, dotted: str) -> bool:
    """`torch.cuda.set_device` without a call."""
    rest, _, last = dotted.rpartition(".")
    if not rest:
        return is_name(node, last)
    return (
        isinstance(node, cst.Attribute) and node.attr.value == last and is_dotted(node.value, rest)
    )


def adds_option(node: cst.CSTNode, *spellings: str) -> bool:
    """`parser.add_argument(...)` with one of these spellings, whatever the parser is called."""
    return is_method_call(node, "add_argument") and any(
        arg.keyword is None and string(arg.value) in spellings for arg in node.args
    )


def receiver(call: cst.Call) -> cst.BaseExpression | None:
    """The `x` of `x.method(...)`."""
    return call.func.value if isinstance(call.func, cst.Attribute) else None


def argument(call: cst.Call, keyword: str) -> cst.Arg | None:
    """The argument that `call` passes by this keyword."""
    return next((arg for arg in call.args if is_name(arg.keyword, keyword)), None)


def string(node: cst.CSTNode | None) -> str | None:
    """The value of a plain string literal; None for anything else."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def integer(node: cst.CSTNode | None) -> int | None:
    """The value of an integer literal, also with a minus sign; None for anything else."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = integer(node.expression)
        return None if value is None else -value
    return node.evaluated_value if isinstance(node, cst.Integer) else None


def small(line: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The first statement on a line; None for a compound statement."""
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) else None


def only(line: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The statement of a line that holds no other."""
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
        return line.body[0]
    return None


def expression(line: cst.CSTNode) -> cst.BaseExpression | None:
    """What a line consisting of a single expression or a single assignment evaluates."""
    found = only(line)
    return found.value if isinstance(found, (cst.Expr, cst.Assign)) else None


def binding(node: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """The name and the value of `name = value`, given as a line or as the assignment on it."""
    assign = small(node) or node
    if isinstance(assign, cst.Assign) and isinstance(name := assign.targets[0].target, cst.Name):
        return name.value, assign.value
    return None


def imported_as(module: cst.Module, name: str) -> str | None:
    """The name that a top-level `import name [as ...]` binds; None if there is no such import."""
    for line in module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            for alias in statement.names if isinstance(statement, cst.Import) else ():
                if is_name(alias.name, name):
                    return alias.evaluated_alias or name
    return None


# Code that is made


def statements(code: str, newline: str = "\n") -> list[cst.BaseStatement]:
    """The statements of `code`; a blank line that it begins with stands above the first of them."""
    first, *rest = cst.parse_module(code.lstrip("\n").replace("\n", newline)).body
    above = [cst.EmptyLine(indent=False)] if code.startswith("\n") else []
    return [first.with_changes(leading_lines=[*above, *first.leading_lines]), *rest]


def wrapped(function: str, value: cst.BaseExpression) -> cst.Call:
    """`function(value)`, where `function` may be a dotted name."""
    return cst.Call(cst.parse_expression(function), [cst.Arg(value)])


def with_keyword(call: cst.Call, keyword: str, value: cst.BaseExpression) -> cst.Call:
    """The call with one more argument by keyword, laid out as those before it are."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    below = call.args[-1].whitespace_after_arg
    new = cst.Arg(value, cst.Name(keyword), equal=tight, whitespace_after_arg=below)
    return call.with_changes(args=_appended(call.args, new))


def with_element(state: cst.Dict, value: cst.BaseExpression) -> cst.Dict:
    """The dict literal with `**value` after its last element, laid out as those before it are."""
    return state.with_changes(elements=_appended(state.elements, cst.StarredDictElement(value)))


def _appended(
    parts: Sequence[cst.Arg] | Sequence[cst.BaseDictElement], new: cst.CSTNode
) -> list[cst.CSTNode]:
    *others, last = parts
    between = others[-1].comma if others else COMMA
    return [*others, last.with_changes(comma=between), new.with_changes(comma=last.comma)]


# The walk


class Visitor(Protocol):
    @property
    def drops(self) -> Sequence[str]:
        """Comments that go with the statements that are removed."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to visit what is in the node."""

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> Result:
        """What becomes of the node; `updated` shows what has become of the nodes in it."""


def walk(node: cst.CSTNode, visitor: Visitor) -> Result:
    """`node.visit(visitor)`, but without copies, and not of spaces and comments.

    LibCST copies and validates each node that it visits; here what is left alone stays the same
    node, whose text has been printed already.  Comments of a removed statement stay, unless
    `visitor.drops` lists them.
    """
    changes: dict[str, object] = {}
    for name in fields(type(node)) if visitor.on_visit(node) else ():
        old = getattr(node, name)
        if type(old) in NODES:
            new = walk(old, visitor)
            if new is not old:
                changes[name] = None if new is cst.RemovalSentinel.REMOVE else new
        elif isinstance(old, (list, tuple)):
            pairs = [(child, walk(child, visitor)) for child in old]
            if any(result is not child for child, result in pairs):
                made = (part for pair in pairs for part in parts(*pair, visitor.drops))
                changes[name], left = spaced(made)
                if left and isinstance(node, cst.IndentedBlock):
                    changes["footer"] = [*left, *node.footer]
    return visitor.on_leave(node, node.with_changes(**changes) if changes else node)


class _Everywhere:
    """A visitor of every node."""

    drops = ()

    def __init__(self, on_leave: Callable[[cst.CSTNode, cst.CSTNode], Result]):
        self.on_leave = on_leave

    def on_visit(self, node: cst.CSTNode) -> bool:
        return True


def rewritten(node: Node, leave: Callable[[cst.CSTNode, cst.CSTNode], Result]) -> Node:
    """`node` with what `leave(original, updated)` makes of each node in it."""
    return cast("Node", walk(node, _Everywhere(leave)))


def replaced(node: Node, name: str, new: cst.BaseExpression) -> Node:
    """`node` with `new` for each variable `name` in it."""

    def leave(original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        # Attributes and keywords are no variables.
        if isinstance(original, cst.Attribute) and is_name(original.attr, name):
            return updated.with_changes(attr=original.attr)
        if isinstance(original, cst.Arg) and is_name(original.keyword, name):
            return updated.with_changes(keyword=original.keyword)
        return new if is_name(original, name) else updated

    return rewritten(node, leave)


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """`node` and everything below it that is code, in the order of the text.

    By fields, since `node.children` copies the node to find them.
    """
    yield node
    for name in fields(type(node)):
        value = getattr(node, name)
        for child in value if isinstance(value, (list, tuple)) else (value,):
            if type(child) in NODES:
                yield from descendants(child)


@functools.cache
def fields(kind: type[cst.CSTNode]) -> list[str]:
    """The fields of a kind of node that may hold code; blocks come last, as in the text."""
    names = [field.name for field in dataclasses.fields(kind) if field.type not in (str, "str")]
    names = [name for name in names if not name.startswith((*SPACES, *PUNCTUATION))]
    blocks = () if kind is cst.IfExp else BLOCKS
    return sorted(names, key=lambda name: blocks.index(name) if name in blocks else -1)


# Statements that are taken out


def parts(node: cst.CSTNode, result: Result, drops: Iterable[str] = ()) -> Sequence[cst.CSTNode]:
    """What a node in a sequence has become: one or several nodes, or what is left of it.

    A removed statement leaves the blank lines above it, and its comments but for `drops`.
    """
    if isinstance(result, cst.FlattenSentinel):
        return result
    if isinstance(result, cst.CSTNode):
        return (result,)
    if not hasattr(node, "leading_lines"):
        return ()
    said = (cst.EmptyLine(comment=c) for c in comments(node) if c.value not in drops)
    return [*_blank(above(node)), *said]


def spaced(nodes: Iterable[cst.CSTNode]) -> tuple[list[cst.CSTNode], list[cst.EmptyLine]]:
    """The nodes, with the lines between them put above the next one; and the comments at the end.

    Blank ones go where the next one has lines of its own above it.
    """
    found: list[cst.CSTNode] = []
    between: list[cst.EmptyLine] = []
    for node in nodes:
        if isinstance(node, cst.EmptyLine):
            between.append(node)
            continue
        said = [line for line in between if line.comment]
        if between and (said or not above(node)):
            lines = [*_blank(between), *said, *above(node)]
            found.append(node.with_changes(leading_lines=lines))
        else:
            found.append(node)
        between = []
    return found, [line for line in between if line.comment]


def without(block: cst.IndentedBlock, unwanted: Callable[[cst.CSTNode], bool]) -> cst.IndentedBlock:
    """The block without its `unwanted` statements; their comments stay, above what follows."""
    gone = [unwanted(line) for line in block.body]
    if not any(gone):
        return block
    remove = cst.RemovalSentinel.REMOVE
    made = (parts(line, remove if dead else line) for line, dead in zip(block.body, gone))
    body, left = spaced(itertools.chain.from_iterable(made))
    if gone[0] and body:  # no blank line at the begin of a block
        said = [line for line in above(body[0]) if line.comment]
        body[0] = body[0].with_changes(leading_lines=said)
    return block.with_changes(body=body, footer=[*left, *block.footer])


def above(node: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    """The blank lines and comments above a statement."""
    return getattr(node, "leading_lines", ())


def comments(node: cst.CSTNode) -> Iterator[cst.Comment]:
    """The comments above, in and behind a node, in the order of the text."""
    for child in node.children:
        if isinstance(child, cst.Comment):
            yield child
        else:
            yield from comments(child)


def _blank(lines: Iterable[cst.EmptyLine]) -> Iterator[cst.EmptyLine]:
    """Those that come before the first comment."""
    return itertools.takewhile(lambda line: line.comment is None, lines)
