"""A script while a series is applied to it: what its patches have asked for, and what the engine adds at the end."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Mapping

import libcst as cst

from patcher.tree import places, syntax
from patcher.tree.names import MODULE, Names

PACKAGE = "support"


class Refused(Exception):
    """A patch sees what it is for, and cannot edit it: why, and at which node or line."""

    def __init__(self, why: str, node: cst.CSTNode | None = None, line: int = 0):
        super().__init__(why)
        self.why, self.node, self.line = why, node, line


class Draft:
    """`source` is the script before the first patch, `support` the modules of `patches/support/` by name."""

    def __init__(self, source: bytes | str, support: Mapping[str, bytes] | None = None):
        self.names = Names(source)
        self.support = support or {}
        self.modules: set[str] = set()  # of `support`, to be imported
        self.options: set[str] = set()  # those of them whose `add_options` is to be called
        self.imports: dict[str, str] = {}  # other imports, as code, by the name that they bind
        self.added_functions: list[cst.FunctionDef] = []  # for a script that stands alone
        self.added_options: list[cst.BaseStatement] = []
        self.placed: dict[
            int, tuple
        ] = {}  # by id: a statement that a patch put somewhere, the place, and its order
        self.brought: dict[
            tuple[str, str], str
        ] = {}  # (function, variable) and the patch that brings it
        self.ours = (
            set(_imported(cst.parse_module(source))) if b"support" in _bytes(source) else set()
        )

    def copy(self) -> Draft:
        other = copy.copy(self)
        for name in (
            "modules",
            "options",
            "imports",
            "placed",
            "brought",
            "added_functions",
            "added_options",
        ):
            setattr(other, name, copy.copy(getattr(self, name)))
        return other

    def use(self, module: str, function: str) -> None:
        """Import `module` of `support`, for code in `function`.  Raises Refused where its name means something else."""
        if self.support and module not in self.support:
            raise Refused(f"there is no patches/support/{module}.py")
        if not self.ours and (scope := self.names.global_clash(PACKAGE, MODULE)):
            self._clash(PACKAGE, scope)
        if module not in self.ours:
            self._bind(module, function)
        self.modules.add(module)

    def add_import(self, module: str, bound: str | None, function: str) -> None:
        """Import a module for code in `function`, unless the script imports it and has `bound` it to a name.

        Raises Refused where the name means something else.
        """
        scope = self.names.hides(bound or module, function)
        if bound is None and not self.names.imports_part_of(module):
            scope = scope or self.names.global_clash(module, function)
        if scope:
            self._clash(bound or module, scope)
        if bound is None:
            self.imports[module] = f"import {module}\n"

    def inline(self, module: str, parser: str, called: str, function: str, newline: str) -> None:
        """Copy the functions and options of a module into the script, for code in `function` that calls one of them.

        Raises Refused where one of the names means something else.
        """
        for node in (
            syntax.statements(self.support[module].decode(), newline)
            if module in self.support
            else ()
        ):
            if isinstance(node, cst.FunctionDef) and node.name.value == "add_options":
                own = node.params.params[0].name.value
                self.added_options += [
                    syntax.replaced(line, own, cst.Name(parser)) for line in node.body.body
                ]
            elif isinstance(node, cst.FunctionDef):
                self._bind(node.name.value, function if node.name.value == called else MODULE)
                self.added_functions.append(node)

    def bring(self, name: str, function: str, patch: str) -> None:
        """Let `patch` make a variable of `function`.  Raises Refused where the script or another patch has it."""
        if self.brought.get((function, name), patch) != patch:
            raise Refused(
                f"the patch {self.brought[function, name]} has brought a variable {name} into {function}"
            )
        if scope := self.names.local_clash(name, function):
            self._clash(name, scope)
        self.brought[function, name] = patch

    def _bind(self, name: str, function: str) -> None:
        """Bind a name of the module for code in `function`.  Raises Refused where it means something else."""
        if scope := self.names.global_clash(name, function):
            self._clash(name, scope)
        if line := self.names.late_star():
            raise Refused(f"the script may have a {name} of its own, from `import *`", line=line)

    def _clash(self, name: str, scope: str) -> None:
        where = "the script" if scope == MODULE else scope
        raise Refused(f"{where} has a {name} of its own", line=self.names.line(name, scope))

    def reached(self) -> tuple[str, ...]:
        """The modules that the script imports, those that these import, and the package itself."""
        found, new = set(), self.modules | self.ours
        while new:
            found |= new
            new = {
                name for module in new for name in _imports_of(self.support.get(module, b""))
            } - found
        return tuple(sorted(found | {"__init__"})) if found else ()

    def finish(self, module: cst.Module) -> cst.Module:
        """The script with the imports and the option lines that its patches have asked for."""
        body = list(module.body)

        def parse(code: str) -> cst.BaseStatement:
            return syntax.statements(code, module.default_newline)[0]

        for bound, statement in sorted(self.imports.items()):
            body.insert(places.place_of_import(body, bound), parse(statement))
        if self.options:
            parser = places.parser_name(module)
            lines = {f"{name}.add_options({parser})\n" for name in self.options}
            there = [
                n
                for n in body
                if module.code_for_node(n).strip().endswith(f".add_options({parser})")
            ]
            at = body.index(there[0]) if there else places.last_option(body) + 1
            lines |= {module.code_for_node(n).replace("\r\n", "\n") for n in there}
            body = [n for n in body if n not in there]
            body[at:at] = [parse(line) for line in sorted(lines)]
        if self.added_functions:
            added = [node.name.value for node in self.added_functions]

            def may_call(node: cst.CSTNode) -> bool:
                return isinstance(node, cst.FunctionDef) or any(
                    name in module.code_for_node(node) for name in added
                )

            at = next(i for i, node in enumerate(body) if may_call(node))
            body[at:at] = self.added_functions
            at = places.last_option(body) + 1
            body[at:at] = self.added_options
        names = sorted(self.modules | set(_imported(module)))
        if names and self.modules:
            body = [n for n in body if not _guarded(n)]
            body.insert(places.end_of_imports(body), parse(_import_statement(names)))
        return module.with_changes(body=body)


def _import_statement(names: list[str]) -> str:
    line = f"    from {PACKAGE} import {', '.join(names)}"
    if len(line) > 79:
        head = f"    from {PACKAGE} import ("
        line = textwrap.fill(
            f"{', '.join(names)})", 79, initial_indent=head, subsequent_indent=" " * len(head)
        )
    return f"""
try:
{line}
except ImportError as error:
    raise SystemExit('{{}}: needs the folder {PACKAGE}/ that was built with it: {{}}'.format(
        __file__, error))
"""


def _guarded(statement: cst.CSTNode) -> list[str]:
    """The names that a statement imports from `support`, if it is the one that the engine writes."""
    line = statement.body.body[0] if isinstance(statement, cst.Try) else None
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    ours = (
        isinstance(small, cst.ImportFrom)
        and syntax.is_name(small.module, PACKAGE)
        and not small.relative
    )
    return [alias.evaluated_name for alias in small.names] if ours else []


def _imported(module: cst.Module) -> list[str]:
    return [name for statement in module.body for name in _guarded(statement)]


def _imports_of(source: bytes) -> Iterator[str]:
    """The modules beside it that a module of `support` imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


def options_of(source: bytes) -> list[str]:
    """The options that `add_options` of a module adds."""
    calls = (
        n
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Call) and hasattr(n.func, "attr")
    )
    strings = (
        a.value
        for n in calls
        if n.func.attr == "add_argument"
        for a in n.args
        if isinstance(a, ast.Constant)
    )
    return [value for value in strings if str(value).startswith("-")]


def _bytes(source: bytes | str) -> bytes:
    return source.encode() if isinstance(source, str) else source
