"""Which names a script has, scope by scope: what a patch brings must not be one of them."""

from __future__ import annotations

import ast
import functools
import symtable
from collections.abc import Iterator

MODULE = "<module>"  # the place of code outside any function, as in a traceback
UNNAMED = ("lambda", "listcomp", "setcomp", "dictcomp", "genexpr")
"""Scopes that belong to the function around them: a patch may edit what stands in one."""


class Names:
    """The names of a script in Python's own scopes, however and wherever they are bound."""

    def __init__(self, source: bytes | str):
        self._source = source
        table = symtable.symtable(source, "script", "exec")  # type: ignore[arg-type]  # takes bytes
        self._scopes = list(_scopes(table))

    @functools.cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._source)

    def _symbols(self, name: str) -> Iterator[tuple[str, symtable.SymbolTable, symtable.Symbol]]:
        """The scopes that know a name, and what they know of it."""
        for scope, table in self._scopes:
            try:
                yield scope, table, table.lookup(name)
            except KeyError:
                continue

    def global_clash(self, name: str, function: str) -> str | None:
        """Where a module-level `name` used in `function` would meet another; None if nowhere."""
        for scope, _, symbol in self._symbols(name):
            if scope == MODULE or symbol.is_global():
                return scope
        return self.hides(name, function)

    def hides(self, name: str, function: str) -> str | None:
        """Where `function`, or one around it, has its own `name`; None if it sees the module's."""
        for scope, table, symbol in self._symbols(name):
            around = table.get_type() != "class" and function.startswith(f"{scope}.")
            if scope != MODULE and (scope == function or around) and not symbol.is_global():
                return scope
        return None

    def local_clash(self, name: str, function: str) -> str | None:
        """Where a new variable of `function` would meet one known there; None if nowhere."""
        if function == MODULE:
            return self.global_clash(name, MODULE)
        for scope, _, symbol in self._symbols(name):
            inside = scope.startswith(f"{function}.") and not symbol.is_local()
            if scope == function or inside:
                return scope
        return None

    def belongs_to_functions(self, name: str) -> bool:
        """Whether `name` is a variable of functions alone."""
        found = [scope != MODULE and symbol.is_local() for scope, _, symbol in self._symbols(name)]
        return bool(found) and all(found)

    def imports_part_of(self, module: str) -> bool:
        """Whether the script has an `import module.part`, which also binds the module's name."""
        imports = (node for node in self._tree.body if isinstance(node, ast.Import))
        aliases = (alias for node in imports for alias in node.names)
        return any(one.name.startswith(f"{module}.") and not one.asname for one in aliases)

    @functools.cached_property
    def late_star(self) -> int:
        """The line of a `from x import *` below the first imports; 0 if there is none."""
        end = 0
        for node in self._tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                end = node.lineno
            elif not isinstance(node, (ast.Expr, ast.If, ast.Try)):
                break
        imports = (node for node in ast.walk(self._tree) if isinstance(node, ast.ImportFrom))
        stars = (node.lineno for node in imports if node.names[0].name == "*")
        return next((line for line in stars if line > end), 0)

    def line(self, name: str, scope: str) -> int:
        """The first line of `scope` on which the script names it; 0 if that cannot be told."""
        nodes = _within(self._tree, scope.split(".") if scope != MODULE else [])
        lines = (getattr(node, "lineno", 0) for node in nodes if name in _names(node))
        return min(filter(None, lines), default=0)


def _names(node: ast.AST) -> list[str | None]:
    """The names that a node itself says."""
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return [*node.names]
    if isinstance(node, ast.keyword):
        return []  # `f(name=1)` names a parameter of f
    return [getattr(node, key, None) for key in ("id", "arg", "asname", "name", "rest")]


def _scopes(
    table: symtable.SymbolTable, outer: tuple[str, ...] = ()
) -> Iterator[tuple[str, symtable.SymbolTable]]:
    """Every scope by the dotted name of its function or class."""
    yield ".".join(outer) or MODULE, table
    for child in table.get_children():
        name = child.get_name().strip("<>")
        yield from _scopes(child, outer if name in UNNAMED else (*outer, name))


def _within(tree: ast.AST, scope: list[str]) -> Iterator[ast.AST]:
    """The nodes below the function or class of this dotted name, or as near as there is one."""
    for name in scope:
        named = (n for n in ast.walk(tree) if getattr(n, "name", None) == name)
        tree = next((n for n in named if hasattr(n, "body")), tree)
    return ast.walk(tree)
