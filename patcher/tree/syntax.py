"""Predicates over LibCST nodes, and values read from them.

A handful of our own: they read better in a patch than nested `libcst.matchers`
and spare every run the import of that module, which costs more than LibCST itself.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator

import libcst as cst


def is_name(node: cst.CSTNode | None, value: str) -> bool:
    return isinstance(node, cst.Name) and node.value == value


def is_method_call(node: cst.CSTNode, name: str) -> bool:
    """`anything.name(...)`."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == name
    )


def is_call(node: cst.CSTNode, dotted: str) -> bool:
    """A call of exactly this name, such as `torch.cuda.set_device(...)`."""
    return isinstance(node, cst.Call) and is_dotted(node.func, dotted)


def is_call_of(node: cst.CSTNode, name: str) -> bool:
    """`name(...)` or `anything.name(...)`: the same class or function, however it was imported."""
    return is_call(node, name) or is_method_call(node, name)


def is_dotted(node: cst.CSTNode, dotted: str) -> bool:
    """`torch.cuda.set_device` without a call."""
    rest, _, last = dotted.rpartition(".")
    if not rest:
        return is_name(node, last)
    return (
        isinstance(node, cst.Attribute) and node.attr.value == last and is_dotted(node.value, rest)
    )


def statements(code: str, newline: str = "\n") -> list[cst.BaseStatement]:
    """The statements of `code`; a blank line that it begins with stands above the first of them."""
    first, *rest = cst.parse_module(code.lstrip("\n").replace("\n", newline)).body
    above = [cst.EmptyLine(indent=False)] if code.startswith("\n") else []
    return [first.with_changes(leading_lines=[*above, *first.leading_lines]), *rest]


def wrapped(function: str, value: cst.BaseExpression) -> cst.Call:
    """`function(value)`, where `function` may be a dotted name."""
    return cst.Call(cst.parse_expression(function), [cst.Arg(value)])


def argument(call: cst.Call, keyword: str) -> cst.Arg | None:
    """The argument that `call` passes by this keyword."""
    return next((arg for arg in call.args if is_name(arg.keyword, keyword)), None)


def with_argument(call: cst.Call, keyword: str, value: cst.BaseExpression) -> cst.Call:
    """The call with one more argument by keyword, laid out as those before it are."""
    *others, last = call.args
    between = others[-1].comma if others else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(
        value,
        cst.Name(keyword),
        equal=tight,
        comma=last.comma,
        whitespace_after_arg=last.whitespace_after_arg,
    )
    return call.with_changes(args=[*others, last.with_changes(comma=between), new])


def with_element(state: cst.Dict, value: cst.BaseExpression) -> cst.Dict:
    """The dict literal with `**value` after its last element, laid out as those before it are."""
    *others, last = state.elements
    between = others[-1].comma if others else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return state.with_changes(
        elements=[
            *others,
            last.with_changes(comma=between),
            cst.StarredDictElement(value, comma=last.comma),
        ]
    )


def string(node: cst.CSTNode) -> str | None:
    """The value of a plain string literal; None for anything else."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def integer(node: cst.CSTNode) -> int | None:
    """The value of an integer literal, with or without a minus sign; None for anything else."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = integer(node.expression)
        return None if value is None else -value
    return node.evaluated_value if isinstance(node, cst.Integer) else None


def adds_option(node: cst.CSTNode, *spellings: str) -> bool:
    """`parser.add_argument(...)` of an option with one of these spellings, whatever the parser is called."""
    return is_method_call(node, "add_argument") and any(
        arg.keyword is None and string(arg.value) in spellings for arg in node.args
    )


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """`node` and everything below it that is code, in the order of the text.

    By fields, since `node.children` copies the node to find them.
    """
    yield node
    for name in fields(type(node)):
        value = getattr(node, name)
        for child in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(child, cst.CSTNode):
                yield from descendants(child)


@functools.cache
def fields(kind: type[cst.CSTNode]) -> list[str]:
    """The fields of a kind of node that may hold code, and no spaces and comments; blocks come last, as in the text."""
    layout = (
        "whitespace",
        "leading_lines",
        "lines_",
        "trailing",
        "header",
        "footer",
        "indent",
        "newline",
    )
    names = [field.name for field in dataclasses.fields(kind) if not field.name.startswith(layout)]
    blocks = () if kind is cst.IfExp else ("body", "handlers", "orelse", "finalbody")
    return sorted(names, key=lambda name: blocks.index(name) if name in blocks else -1)


def walk(node: cst.CSTNode, visitor):
    """`node.visit(visitor)`, but for spaces and comments, which are not visited, and without copies.

    LibCST copies and validates each node that it visits; here what is left alone stays the same node, whose
    text has been printed already.  Comments of a statement that is removed stay, but for those in `visitor.drops`.
    """
    changes, drops = {}, getattr(visitor, "drops", ())
    for name in fields(type(node)) if visitor.on_visit(node) else ():
        old = getattr(node, name)
        if isinstance(old, cst.CSTNode):
            new = walk(old, visitor)
            if new is not old:
                changes[name] = None if new is cst.RemovalSentinel.REMOVE else new
        elif isinstance(old, (list, tuple)):
            new = [
                (child, walk(child, visitor) if isinstance(child, cst.CSTNode) else child)
                for child in old
            ]
            if any(one is not child for child, one in new):
                changes[name], left = spaced(
                    [part for child, one in new for part in parts(child, one, drops)]
                )
                if left and isinstance(node, cst.IndentedBlock):
                    changes["footer"] = [*left, *node.footer]
    return visitor.on_leave(node, node.with_changes(**changes) if changes else node)


def replaced(node: cst.CSTNode, name: str, new: cst.BaseExpression) -> cst.CSTNode:
    """`node` with `new` for each variable `name` in it."""
    return walk(node, _Replacer(name, new))


class _Replacer:
    def __init__(self, name: str, new: cst.BaseExpression):
        self.name, self.new = name, new

    def on_visit(self, node: cst.CSTNode) -> bool:
        return True

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        for kind, part in (
            (cst.Attribute, "attr"),
            (cst.Arg, "keyword"),
        ):  # names that are no variables
            if isinstance(original, kind) and getattr(updated, part) is not getattr(original, part):
                return updated.with_changes(**{part: getattr(original, part)})
        return self.new if is_name(original, self.name) else updated


def parts(node: cst.CSTNode, result, drops: Iterable[str] = ()) -> Iterable:
    """What a node in a sequence has become: one node or several, or the lines that a removed statement leaves.

    These are the blank lines above it, and its comments but for `drops`.
    """
    if result is not cst.RemovalSentinel.REMOVE:
        return result if isinstance(result, cst.FlattenSentinel) else (result,)
    if not hasattr(node, "leading_lines"):
        return ()
    blank = itertools.takewhile(lambda line: line.comment is None, node.leading_lines)
    return [
        *blank,
        *(
            cst.EmptyLine(comment=comment)
            for comment in comments(node)
            if comment.value not in drops
        ),
    ]


def spaced(nodes: Iterable) -> tuple[list, list]:
    """The nodes with the lines between them above the next one, blank ones if it has none; and comments at the end."""
    found, above = [], []
    for node in nodes:
        if isinstance(node, cst.EmptyLine):
            above.append(node)
            continue
        said = [line for line in above if line.comment]
        if above and (said or not node.leading_lines):
            blank = itertools.takewhile(lambda line: line.comment is None, above)
            node = node.with_changes(leading_lines=[*blank, *said, *node.leading_lines])
        found.append(node)
        above = []
    return found, [line for line in above if line.comment]


def comments(node: cst.CSTNode) -> Iterator[cst.Comment]:
    """The comments above, in and behind a node, in the order of the text."""
    for child in node.children:
        if isinstance(child, cst.Comment):
            yield child
        else:
            yield from comments(child)


def expression(statement: cst.CSTNode) -> cst.BaseExpression | None:
    """What a line consisting of a single expression or a single assignment evaluates."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    small = statement.body[0]
    return small.value if isinstance(small, (cst.Expr, cst.Assign)) else None


def imported_as(module: cst.Module, name: str) -> str | None:
    """The name that a top-level `import name [as ...]` binds; None where there is no such import."""
    for statement in module.body:
        for small in (
            getattr(statement, "body", ()) if isinstance(statement, cst.SimpleStatementLine) else ()
        ):
            for alias in small.names if isinstance(small, cst.Import) else ():
                if is_name(alias.name, name):
                    return alias.asname.name.value if alias.asname else name
    return None


def without(block: cst.IndentedBlock, unwanted) -> cst.IndentedBlock:
    """The block without its statements for which `unwanted` holds; comments above them stay, above what follows."""
    body, above = [], []
    for statement in block.body:
        if unwanted(statement):
            above += statement.leading_lines
            inner = comments(statement.with_changes(leading_lines=()))
            above += [cst.EmptyLine(comment=comment) for comment in inner]
            continue
        if above and (any(line.comment for line in above) or not statement.leading_lines):
            statement = statement.with_changes(leading_lines=[*above, *statement.leading_lines])
        body.append(statement)
        above = []
    return (
        block
        if len(body) == len(block.body)
        else block.with_changes(body=body, footer=[*above, *block.footer])
    )


def with_statement(block: cst.IndentedBlock, new: cst.BaseStatement, after) -> cst.IndentedBlock:
    """The block with `new` behind its first statement for which `after` holds; itself where there is none."""
    for index, statement in enumerate(block.body):
        if after(statement):
            return block.with_changes(
                body=[*block.body[: index + 1], new, *block.body[index + 1 :]]
            )
    return block


def assigns(statement: cst.CSTNode, matches) -> bool:
    """Whether a line is `name = value` with a value for which `matches` holds."""
    value = expression(statement)
    return value is not None and isinstance(statement.body[0], cst.Assign) and matches(value)
