"""What `os.environ` is called at a place in a script, and where an `import os` goes that is missing."""

from __future__ import annotations

import ast

from patcher.rewrite.nodes import FUNCTIONS, first_line
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Unsure


def environ_at(script: Script, node: ast.AST) -> tuple[str, bool]:
    """The code for `os.environ` at `node`, and whether an `import os` has to be added for it.

    A name that the script binds already is never bound again: where `os` stands for something else, is
    imported only later, or under a condition, a human has to look.
    """
    for alias in _aliases(script):
        name = alias.asname or alias.name.partition(".")[0]
        if _is_bound(script, name, alias, node):
            of_os = isinstance(script.parents[alias], ast.Import)
            return (f"{name}.environ" if of_os else name), False
    _, here = script.lookup("os", node)
    others = [binder for scope, binder in script.binders("os") if scope is script.tree]
    for binder in [*here, *others]:
        raise Unsure(f"`os` in line {_line(script, binder)} is not certainly the module os here")
    return "os.environ", True


def import_os(script: Script) -> Edit:
    """Add `import os` to the script's first block of plain imports, by name; never above docstring or `__future__`."""
    body = script.tree.body
    at = start = _end_of_preamble(body)
    while at < len(body) and isinstance(body[at], ast.Import):
        gap = at > start and body[at].lineno > body[at - 1].end_lineno + 1
        if gap or body[at].names[0].name > "os":
            break
        at += 1
    if (
        at == start
        and at < len(body)
        and (at == 0 or isinstance(body[at], (ast.Import, ast.ImportFrom)))
    ):
        line = first_line(body[at])
        while at and script.line(line - 1).lstrip().startswith("#"):
            line -= 1  # what is said of the first import stays with it
    else:
        line = body[at - 1].end_lineno + 1
    start = script.line_start(line)
    newline = "" if start == 0 or script.text[start - 1] == "\n" else script.newline
    return Edit(start, start, f"{newline}import os{script.newline}")


def imports_in_time(script: Script, node: ast.AST) -> bool:
    """Whether an `import os` that is added now has run when `node` runs."""
    return script.span(node)[0] >= import_os(script).start


def _aliases(script: Script) -> list[ast.alias]:
    """What may stand for `os`, or for its `environ`, somewhere in the script."""
    found = []
    for statement in script.nodes(ast.Import, near=["os"]):
        found += [
            a
            for a in statement.names
            if a.name == "os" or (a.name.startswith("os.") and a.asname is None)
        ]
    for statement in script.nodes(ast.ImportFrom, near=["os"]):
        of_os = statement.module == "os" and not statement.level
        found += [a for a in statement.names if of_os and a.name == "environ"]
    return found


def _is_bound(script: Script, name: str, alias: ast.alias, node: ast.AST) -> bool:
    """Whether `name` at `node` is certainly what `alias` imports."""
    scope, binders = script.lookup(name, node)
    statement = script.parents[alias]
    outside = _outside_try(script, statement)
    handlers = outside.handlers if isinstance(outside, ast.Try) else ()
    never = {id(child) for handler in handlers for child in ast.walk(handler)}
    same = {id(a) for a in _aliases(script)} | never
    if not any(binder is alias for binder in binders) or any(
        id(binder) not in same for binder in binders
    ):
        return False
    if scope is script.tree and isinstance(script.function(node), FUNCTIONS):
        return isinstance(script.parents[outside], ast.Module)
    return script.precedes(statement, node) or script.precedes(outside, node)


def _outside_try(script: Script, statement: ast.stmt) -> ast.stmt:
    """The `try` that begins with the statement: importing os never fails."""
    parent = script.parents[statement]
    return parent if isinstance(parent, ast.Try) and parent.body[0] is statement else statement


def _end_of_preamble(body: list[ast.stmt]) -> int:
    at = 0
    for index, statement in enumerate(body):
        docstring = (
            index == 0
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
        if not docstring and not (
            isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        ):
            break
        at = index + 1
    return at


def _line(script: Script, binder: ast.AST) -> int:
    return getattr(binder, "lineno", 0) or script.statement(binder).lineno
