"""A script while a series is applied to it: what its patches ask for, and what is added at the end.

That is: imports, what adds options, and functions for a script that stands alone.
"""

from __future__ import annotations

import ast
import copy
import functools
import re
import textwrap
from collections.abc import Mapping, Sequence

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
    """`source` is the script before the first patch, `support` the modules of `patches/support/`.

    Each request raises Refused if a name that it brings means something else in the script.
    """

    def __init__(self, source: bytes, support: Mapping[str, bytes] | None = None):
        self.names = Names(source)
        self.support = support or {}
        self.modules: set[str] = set()  # of `support`, to be imported
        self.options: set[str] = set()  # those of them whose `add_options` is to be called
        self.imports: dict[str, str] = {}  # other imports, as code, by the name that they bind
        self.functions: list[cst.FunctionDef] = []  # for a script that stands alone
        self.lines: list[cst.BaseStatement] = []  # that add its options
        # By id: a statement that a patch put to a place, so that it lives, that place, its order.
        self.placed: dict[int, tuple[cst.CSTNode, places.Place, tuple[int, str, int]]] = {}
        self.brought: dict[tuple[str, str], str] = {}  # the patch, by function and variable
        there = cst.parse_module(source) if PACKAGE.encode() in source else cst.Module([])
        self.ours = set(_imported(there))

    def copy(self) -> Draft:
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (set, dict, list)):
                setattr(other, name, copy.copy(value))
        return other

    def use(self, module: str, function: str) -> None:
        """Import `module` of `support`, for code in `function`."""
        if self.support and module not in self.support:
            raise Refused(f"there is no patches/support/{module}.py")
        if not self.ours and (scope := self.names.global_clash(PACKAGE, MODULE)):
            self._clash(PACKAGE, scope)
        if module not in self.ours:
            self._bind(module, function)
        self.modules.add(module)

    def add_import(self, module: str, bound: str | None, function: str) -> None:
        """Import a module for code in `function`, unless the script has `bound` it to a name."""
        name = bound or module
        scope = self.names.hides(name, function)
        if bound is None and not self.names.imports_part_of(module):
            scope = scope or self.names.global_clash(module, function)
        if scope:
            self._clash(name, scope)
        if bound is None:
            self.imports[module] = f"import {module}\n"

    def inline(self, module: str, parser: str, called: str, function: str, newline: str) -> None:
        """Copy the functions and options of a module; `function` calls `called`, one of them."""
        code = self.support.get(module, b"").decode()
        for node in syntax.statements(code, newline) if code else ():
            if not isinstance(node, cst.FunctionDef):
                continue
            if node.name.value == "add_options":
                own, new = node.params.params[0].name.value, cst.Name(parser)
                self.lines += [syntax.replaced(n, own, new) for n in places.lines_of(node)]
            else:
                self._bind(node.name.value, function if node.name.value == called else MODULE)
                self.functions.append(node)

    def bring(self, name: str, function: str, patch: str) -> None:
        """Let `patch` make a variable of `function`, if no other patch does."""
        other = self.brought.get((function, name), patch)
        if other != patch:
            raise Refused(f"the patch {other} has brought a variable {name} into {function}")
        if scope := self.names.local_clash(name, function):
            self._clash(name, scope)
        self.brought[function, name] = patch

    def put(
        self,
        function: cst.FunctionDef,
        place: places.Place,
        code: Sequence[cst.BaseStatement],
        rank: int,
        patch: str,
    ) -> cst.FunctionDef:
        """`function` with `code` at `place`, by rank; itself if it has no such place."""
        for number, line in enumerate(code):
            self.placed[id(line)] = (line, place, (rank, patch, number))
        here = {key: order for key, (_, one, order) in self.placed.items() if one is place}
        return places.insert(function, place, code, lambda line: here.get(id(line)))

    def _option_lines(
        self, names: list[str], parser: str, newline: str, loops: bool
    ) -> list[cst.BaseStatement]:
        """What adds the options of these modules: one loop, if it is worth one and may be there.

        `loops` says that the script has that loop already, so its `module` is ours.
        """
        if len(names) == 1 or (self.names.global_clash("module", MODULE) and not loops):
            return syntax.statements(
                "".join(f"{name}.add_options({parser})\n" for name in names), newline
            )
        loop = _filled("for module in (", f"{', '.join(names)}):", 100)
        return syntax.statements(f"{loop}\n    module.add_options({parser})\n", newline)

    def _adding(self, code: str, parser: str) -> list[str]:
        """The modules of `support` whose options a statement of the script adds."""
        form = rf"(?:for module in \(([\w,\s]+)\):\s+module|(\w+))\.add_options\({parser}\)"
        found = re.fullmatch(form, code.strip())
        names = re.findall(r"\w+", found[1] or found[2]) if found else []
        return names if self.ours.issuperset(names) else []

    def _bind(self, name: str, function: str) -> None:
        """Bind a name of the module for code in `function`."""
        if scope := self.names.global_clash(name, function):
            self._clash(name, scope)
        if line := self.names.late_star:
            raise Refused(f"the script may have a {name} of its own, from `import *`", line=line)

    def _clash(self, name: str, scope: str) -> None:
        where = "the script" if scope == MODULE else scope
        raise Refused(f"{where} has a {name} of its own", line=self.names.line(name, scope))

    def reached(self) -> tuple[str, ...]:
        """The modules that the script imports, those that they import, and the package itself."""
        found: set[str] = set()
        new = self.modules | self.ours
        while new:
            found |= new
            sources = (self.support.get(module, b"") for module in new)
            new = {name for source in sources for name in _imports_of(source)} - found
        return tuple(sorted(found | {"__init__"})) if found else ()

    def finish(self, module: cst.Module) -> cst.Module:
        """The script with the imports and the option lines that its patches have asked for."""
        body: list[cst.BaseStatement] = [*module.body]
        code, newline = module.code_for_node, module.default_newline

        def parse(text: str) -> cst.BaseStatement:
            return syntax.statements(text, newline)[0]

        for bound, statement in sorted(self.imports.items()):
            body.insert(places.place_of_import(body, bound), parse(statement))
        if self.options:
            parser = places.parser_name(module) or ""
            there = {node: names for node in body if (names := self._adding(code(node), parser))}
            every = self.options.union(*there.values())
            at = body.index(next(iter(there))) if there else places.last_option(body) + 1
            body = [node for node in body if node not in there]
            body[at:at] = self._option_lines(sorted(every), parser, newline, loops=bool(there))
        if self.functions:
            names = [node.name.value for node in self.functions]
            at = next(
                at
                for at, node in enumerate(body)
                if isinstance(node, cst.FunctionDef) or any(name in code(node) for name in names)
            )
            body[at:at] = self.functions
            at = places.last_option(body) + 1
            body[at:at] = self.lines
        if self.modules:
            line = _import_statement(sorted(self.modules | set(_imported(module))))
            body = [node for node in body if not _guarded(node)]
            body.insert(places.end_of_imports(body), parse(line))
        return module.with_changes(body=body)


def _import_statement(names: list[str]) -> str:
    line = f"    from {PACKAGE} import {', '.join(names)}"
    if len(line) > 79:
        line = _filled(f"    from {PACKAGE} import (", f"{', '.join(names)})", 79)
    return f"""
try:
{line}
except ImportError as error:
    raise SystemExit('{{}}: needs the folder {PACKAGE}/ that was built with it: {{}}'.format(
        __file__, error))
"""


def _filled(head: str, names: str, width: int) -> str:
    """`head`, which ends with a bracket, and the names in it, below one another."""
    return textwrap.fill(head + names, width, subsequent_indent=" " * len(head))


def _guarded(statement: cst.CSTNode) -> list[str]:
    """The names that a statement imports from `support`, if it is the one of the engine."""
    small = syntax.small(statement.body.body[0]) if isinstance(statement, cst.Try) else None
    if not isinstance(small, cst.ImportFrom) or isinstance(small.names, cst.ImportStar):
        return []
    ours = syntax.is_name(small.module, PACKAGE) and not small.relative
    return [alias.evaluated_name for alias in small.names] if ours else []


def _imported(module: cst.Module) -> list[str]:
    return [name for statement in module.body for name in _guarded(statement)]


@functools.cache
def _imports_of(source: bytes) -> frozenset[str]:
    """The modules beside it that a module of `support` imports."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    beside = [node for node in nodes if node.level == 1]
    return frozenset(
        name
        for node in beside
        for name in ([node.module] if node.module else [alias.name for alias in node.names])
    )


@functools.cache
def options_of(source: bytes) -> list[str]:
    """The options that `add_options` of a module adds."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    adding = (call for call in calls if getattr(call.func, "attr", "") == "add_argument")
    values = (a.value for call in adding for a in call.args if isinstance(a, ast.Constant))
    return [value for value in values if isinstance(value, str) and value.startswith("-")]
