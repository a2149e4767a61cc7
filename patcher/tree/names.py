"""Which names a script has, scope by scope: what a patch brings must not be one that means something there already."""

from __future__ import annotations

import ast
import functools
import symtable
from collections.abc import Iterator

MODULE = "<module>"  # the place of code outside any function, as in a traceback
UNNAMED = (
    "lambda",
    "listcomp",
    "setcomp",
    "dictcomp",
    "genexpr",
)  # scopes that belong to the function around them


class Names:
    """The names of a script, as Python itself sorts them into scopes: however they are bound, and wherever."""

    def __init__(self, source: bytes | str):
        self._source = source
        self._scopes = list(_scopes(symtable.symtable(source, "script", "exec")))

    def global_clash(self, name: str, function: str) -> str | None:
        """Where a module-level `name` that is used in `function` would meet another one; None if nowhere."""
        for scope, table in self._scopes:
            symbol = _symbol(table, name)
            if symbol is not None and (scope == MODULE or symbol.is_global()):
                return scope
        return self.hides(name, function)

    def hides(self, name: str, function: str) -> str | None:
        """Where `function`, or one around it, has a `name` of its own before that of the module; None if nowhere."""
        for scope, table in self._scopes:
            symbol = _symbol(table, name)
            around = table.get_type() != "class" and function.startswith(f"{scope}.")
            if (
                symbol is not None
                and scope != MODULE
                and (scope == function or around)
                and not symbol.is_global()
            ):
                return scope
        return None

    @functools.cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._source)

    def belongs_to_functions(self, name: str) -> bool:
        """Whether `name` is a variable of functions alone."""
        symbols = [
            (scope, symbol) for scope, table in self._scopes if (symbol := _symbol(table, name))
        ]
        return bool(symbols) and all(
            scope != MODULE and symbol.is_local() for scope, symbol in symbols
        )

    def imports_part_of(self, module: str) -> bool:
        """Whether the script has an `import module.part`, which binds the name of the module too."""
        plain = (node for node in self._tree.body if isinstance(node, ast.Import))
        return any(
            alias.name.startswith(f"{module}.") and not alias.asname
            for node in plain
            for alias in node.names
        )

    def late_star(self) -> int:
        """The line of a `from x import *` below the imports that the script begins with; 0 if there is none."""
        end = 0
        for node in self._tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                end = node.lineno
            elif not isinstance(node, (ast.Expr, ast.If, ast.Try)):
                break
        stars = (
            n
            for n in ast.walk(self._tree)
            if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"
        )
        return next((node.lineno for node in stars if node.lineno > end), 0)

    def local_clash(self, name: str, function: str) -> str | None:
        """Where a new variable `name` of `function` would meet one that the script knows there; None if nowhere."""
        if function == MODULE:
            return self.global_clash(name, MODULE)
        for scope, table in self._scopes:
            symbol = _symbol(table, name)
            inside = scope == function or scope.startswith(f"{function}.")
            if symbol is not None and inside and (scope == function or not symbol.is_local()):
                return scope
        return None

    def line(self, name: str, scope: str) -> int:
        """The first line of `scope` on which the script names it; 0 if that cannot be told."""
        found = []
        for node in _within(self._tree, scope.split(".") if scope != MODULE else []):
            if isinstance(node, ast.keyword):
                continue  # `f(name=1)` names a parameter of f
            names = [getattr(node, key, None) for key in ("id", "arg", "asname", "name", "rest")]
            if isinstance(node, ast.alias):
                names = [node.asname or node.name.partition(".")[0]]
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                names = node.names
            if name in names:
                found.append(getattr(node, "lineno", 0))
        return min((line for line in found if line), default=0)


def _symbol(table: symtable.SymbolTable, name: str) -> symtable.Symbol | None:
    try:
        return table.lookup(name)
    except KeyError:
        return None


def _scopes(
    table: symtable.SymbolTable, outer: tuple[str, ...] = ()
) -> Iterator[tuple[str, symtable.SymbolTable]]:
    """Every scope by the dotted name of its function or class.

    Those of lambdas and comprehensions count as the function around them: a patch may edit what stands in one.
    """
    yield ".".join(outer) or MODULE, table
    for child in table.get_children():
        name = child.get_name().strip("<>")
        yield from _scopes(child, outer if name in UNNAMED else (*outer, name))


def _within(tree: ast.AST, scope: list[str]) -> Iterator[ast.AST]:
    """The nodes below the function or class of this dotted name; below the module where there is none."""
    for name in scope:
        found = [
            n for n in ast.walk(tree) if getattr(n, "name", None) == name and hasattr(n, "body")
        ]
        tree = found[0] if found else tree
    return ast.walk(tree)
