"""Predicates over LibCST nodes, and values read from them.

A handful of our own: they read better in a patch than nested `libcst.matchers`
and spare every run the import of that module, which costs more than LibCST itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst


def is_name(node: cst.CSTNode | None, value: str) -> bool:
    return isinstance(node, cst.Name) and node.value == value


def is_method_call(node: cst.CSTNode, name: str) -> bool:
    """`anything.name(...)`."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == name


def argument(call: cst.Call, keyword: str) -> cst.Arg | None:
    """The argument that `call` passes by this keyword."""
    return next((arg for arg in call.args if is_name(arg.keyword, keyword)), None)


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
    """`node` and everything below it."""
    yield node
    for child in node.children:
        yield from descendants(child)


def expression(statement: cst.CSTNode) -> cst.BaseExpression | None:
    """What a line consisting of a single expression or a single assignment evaluates."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    small = statement.body[0]
    return small.value if isinstance(small, (cst.Expr, cst.Assign)) else None


def imported_as(module: cst.Module, name: str) -> str | None:
    """The name that a top-level `import name [as ...]` binds; None where there is no such import."""
    for statement in module.body:
        for small in getattr(statement, "body", ()) if isinstance(statement, cst.SimpleStatementLine) else ():
            for alias in small.names if isinstance(small, cst.Import) else ():
                if is_name(alias.name, name):
                    return alias.asname.name.value if alias.asname else name
    return None
