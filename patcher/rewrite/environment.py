"""What `os.environ` is called at a place in a script, and where a missing `import os` goes."""

from __future__ import annotations

import ast

from patcher.rewrite.nodes import FUNCTIONS, first_line, last_line
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Unsure


def environ_at(script: Script, node: ast.expr) -> tuple[str, bool]:
    """The code for `os.environ` at `node`, and whether an `import os` has to be added for it.

    A name that the script binds already is never bound again.  Raises Unsure if `os` stands for
    something else, or is imported only later or under a condition.
    """
    for alias in _aliases(script):
        name = alias.asname or alias.name.partition(".")[0]
        if _is_bound(script, name, alias, node):
            of_os = isinstance(script.parents[alias], ast.Import)
            return (f"{name}.environ" if of_os else name), False
    _, here = script.lookup("os", node)
    for binder in [*here, *script.lookup_in("os", script.tree)]:
        raise Unsure(f"`os` in line {binder.lineno} is not certainly the module os here")
    if script.span(node)[0] < import_os(script).start:
        raise Unsure("an `import os` would come after it")
    return "os.environ", True


def import_os(script: Script) -> Edit:
    """Add `import os` to the first block of plain imports, sorted by name.

    It never comes above the docstring or an import from `__future__`.
    """
    body = script.tree.body
    start = int(ast.get_docstring(script.tree, clean=False) is not None)
    while start < len(body) and _is_future(body[start]):
        start += 1
    at = start
    while at < len(body) and isinstance(statement := body[at], ast.Import):
        gap = at > start and statement.lineno > last_line(body[at - 1]) + 1
        if gap or statement.names[0].name > "os":
            break
        at += 1
    follows = body[at] if at == start and at < len(body) else None
    if follows and (at == 0 or isinstance(follows, (ast.Import, ast.ImportFrom))):
        line = first_line(follows)
        while at and script.line(line - 1).lstrip().startswith("#"):
            line -= 1  # what is said of the first import stays with it
    else:
        line = last_line(body[at - 1]) + 1
    edge = script.line_start(line)
    newline = "" if edge == 0 or script.text[edge - 1] == "\n" else script.newline
    return Edit(edge, edge, f"{newline}import os{script.newline}")


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _aliases(script: Script) -> list[ast.alias]:
    """What may stand for `os`, or for its `environ`, somewhere in the script."""
    found = [
        a
        for statement in script.nodes(ast.Import, near=["os"])
        for a in statement.names
        if a.name == "os" or (a.name.startswith("os.") and a.asname is None)
    ]
    for origin in script.nodes(ast.ImportFrom, near=["os"]):
        if origin.module == "os" and not origin.level:
            found += [a for a in origin.names if a.name == "environ"]
    return found


def _is_bound(script: Script, name: str, alias: ast.alias, node: ast.AST) -> bool:
    """Whether `name` at `node` is certainly what `alias` imports."""
    scope, binders = script.lookup(name, node)
    statement = outside = script.parents[alias]
    same: set[ast.AST] = set(_aliases(script))
    parent = script.parents[statement]
    if isinstance(parent, ast.Try) and parent.body[0] is statement:
        outside = parent  # to import os never fails, so no handler runs
        same |= {child for handler in parent.handlers for child in ast.walk(handler)}
    if alias not in binders or not same.issuperset(binders):
        return False
    if scope is script.tree and isinstance(script.function(node), FUNCTIONS):
        return isinstance(script.parents[outside], ast.Module)
    return script.precedes(statement, node) or script.precedes(outside, node)
