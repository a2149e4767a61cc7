"""Predicates over nodes of Python's own syntax tree, and values read from them."""

from __future__ import annotations

import ast

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
TOKENS = (
    ast.expr_context,
    ast.boolop,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
)  # one object for all, with no position
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def first_line(statement: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c` and of `c`; empty for anything else."""
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((keyword for keyword in call.keywords if keyword.arg == name), None)


def integer(node: ast.AST) -> int | None:
    """The value of an integer literal, with or without a sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = integer(node.operand)
        return None if value is None else -value if isinstance(node.op, ast.USub) else value
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def is_constant(node: ast.AST | None, *values) -> bool:
    """Whether a node is a literal of one of these values; True is not 1."""
    return isinstance(node, ast.Constant) and any(
        type(node.value) is type(v) and node.value == v for v in values
    )
