"""Predicates over nodes of Python's own syntax tree, and values read from them."""

from __future__ import annotations

import ast
from typing import Any, Protocol, TypeGuard

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Placed(Protocol):
    """A node with a position: a statement, an expression, what binds a name."""

    lineno: int
    col_offset: int
    end_lineno: int | None
    end_col_offset: int | None


def place(node: Any) -> tuple[int, int]:
    """The position of a node, to sort by."""
    return node.lineno, node.col_offset


def first_line(statement: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def last_name(node: ast.AST | None) -> str:
    """`c` of `a.b.c` and of `c`; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def receiver(node: ast.AST, *methods: str) -> ast.expr | None:
    """What one of these methods is called on, `a.b` of `a.b.method()`; None for anything else."""
    method = node.func if isinstance(node, ast.Call) else None
    return method.value if isinstance(method, ast.Attribute) and method.attr in methods else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """What a call passes by this name."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def starred(call: ast.Call) -> bool:
    return any(isinstance(arg, ast.Starred) for arg in call.args)


def integer(node: ast.AST) -> int | None:
    """The value of an integer literal, with or without a sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = integer(node.operand)
        return -value if value is not None and isinstance(node.op, ast.USub) else value
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def is_constant(node: ast.AST | None, *values: object) -> TypeGuard[ast.Constant]:
    """Whether a node is a literal of one of these values; True is not 1."""
    if not isinstance(node, ast.Constant):
        return False
    return any(type(node.value) is type(value) and node.value == value for value in values)
