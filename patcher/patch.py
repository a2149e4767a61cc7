"""The base class of every patch: a LibCST transformer that counts what it does."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import libcst as cst

from patcher import places, syntax
from patcher.places import Body
from patcher.problem import Problem

_DEFINITIONS = (cst.FunctionDef, cst.ClassDef)
MODULE = "<module>"  # the place of code outside any function, as in a traceback


class Patch(cst.CSTTransformer):
    """One edit, one idea.

    A subclass states, in the order in which a reader asks: why (its docstring),
    where (`sites`), when it is done (`done`), what it changes (`changes`), what
    it must leave alone (`leaves`), and then rewrites nodes in `leave_*` methods.
    A rewrite is counted when such a method returns another node than it was given,
    so it has to return `updated` itself wherever there is nothing to do.

    Rewrites must destroy their own match, must not nest in one another, and take
    names from the code.  `leave_<Node>` and `visit_<Node>` work as in LibCST, for all nodes but spaces and
    comments; `visit_<Node>_<attribute>` is not supported.  Both make a visit much cheaper.
    """

    sites: ClassVar[Mapping[str, Mapping[str, int]]] = {}
    """Per upstream file, the functions that hold a site and how many each: exact."""

    needles: ClassVar[tuple[bytes, ...]] = ()
    """A top-level statement with none of these bytes is never visited.
    They must cover what is looked for *and* what `done` looks for."""

    origin: ClassVar[str] = ""
    """A URL that tells why the edit is needed."""

    changes: ClassVar[Sequence[tuple]] = ()
    """(before, after) or (before, after, options): documentation, and a test.
    A line `...` in the second text stands for inserted code."""

    leaves: ClassVar[Sequence[str]] = ()
    """Look-alikes that stay as they are: documentation, and a test."""

    after: ClassVar[Sequence[str]] = ()
    """Patches that have to come earlier in a series that holds both."""

    module: cst.Module
    """The module as it stands when this pass begins."""

    text: Callable[[cst.BaseStatement], str]
    """The text of a top-level statement of it."""

    def __init__(self, **options):
        """A subclass checks its options and passes them on, normalised; `ValueError` says what is right."""
        super().__init__()
        self.options = options
        self.hits: list[tuple[str, cst.CSTNode]] = []  # (function, the node as it was)
        self.already_done = False
        self.insertions: list[Callable[[Body], Body]] = []
        self.inserted: dict[str, cst.BaseStatement] = {}  # by this patch and, where the engine says so, those before it
        self._scope: list[str] = []
        self._parameters: list[list[str]] = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # LibCST formats a name and looks it up for every node; a table of our own methods is several times faster.
        names = {name for c in cls.__mro__[: cls.__mro__.index(Patch)] for name in vars(c)}
        cls._visitors = {getattr(cst, n[6:]): getattr(cls, n) for n in names if n.startswith("visit_")}
        cls._leavers = {getattr(cst, n[6:]): getattr(cls, n) for n in names if n.startswith("leave_")}

    def done(self, node: cst.CSTNode) -> bool:
        """Whether `node` shows that the edit has been made; absent before, present after."""
        raise NotImplementedError(f"{type(self).__name__} does not say when it is done")

    def fresh(self) -> Patch:
        """The same patch with the same options, and nothing counted yet."""
        return type(self)(**self.options)

    @classmethod
    def slug(cls) -> str:
        """The name in a series: that of the module."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    # What a rewrite may ask to be inserted.  The engine inserts after the pass, and
    # only where the pass has rewritten something, so that nothing is inserted twice.

    def module_name(self, module: str) -> str:
        """The name that `import module` binds in this script; the import is added where it is missing."""
        bound = syntax.imported_as(self.module, module)
        if bound is None:
            self._insert_import(f"import {module}", module)
        return bound or module

    def insert_function(self, name: str, file: str) -> None:
        """Insert the function or class `name` of `patches/added/<file>` before the script's first function.

        For a rewrite outside any function it goes behind the imports.  Inserted functions stand there by
        name, so that patches which insert can change places.  One that is there already is not inserted again.
        What the function needs comes along: of the imports in its file those that the script lacks, of this
        and other files in `patches/added/` the functions that it names.
        """
        if name in self.inserted:
            return
        source = self._added(file)
        found = [node for node in source.body if isinstance(node, _DEFINITIONS) and node.name.value == name]
        if not found:
            raise Problem(f"there is no function {name}", file=f"patches/added/{file}")
        text = source.code_for_node(found[0].with_changes(leading_lines=()))
        self._insert_imports(source, text)
        blank = (cst.EmptyLine(indent=False), cst.EmptyLine(indent=False))
        function = self._parse(text).with_changes(leading_lines=blank)
        if self._own_function(name) is None:
            self.inserted[name] = function
            place = places.end_of_imports if self.function == MODULE else self._first_function
            self.insertions.append(lambda body: self._insert_sorted(body, name, function, place(body)))
            used = {node.value for node in syntax.descendants(found[0]) if isinstance(node, cst.Name)}
            for other, where in places.added_functions(source, file):
                if other in used:
                    self.insert_function(other, where)

    def added_statement(self, file: str) -> cst.BaseStatement:
        """The last statement of `patches/added/<file>`, for the patch to put where it belongs; brings its imports."""
        source = self._added(file)
        comments = [line for line in source.body[-1].leading_lines if line.comment]
        text = source.code_for_node(source.body[-1].with_changes(leading_lines=()))
        self._insert_imports(source, text)
        return self._parse(text).with_changes(leading_lines=comments)

    def insert_option(self, option: str, file: str, parser: str) -> None:
        """Insert `parser.add_argument(option, ...)` of `patches/added/<file>` behind the script's last option.

        Inserted options stand there by name, like functions.
        """
        source = self._added(file)
        line = next((node for node in source.body if places.adds_option(node, option)), None)
        if line is None:
            raise Problem(f"there is no option {option}", file=f"patches/added/{file}")
        # Continuation lines are aligned to the parenthesis, which moves with the length of the parser's name.
        text = source.code_for_node(line.with_changes(leading_lines=()))
        shift = len(parser) - len("parser")
        first, *rest = text.split("\n")
        rest = [" " * (len(r) - len(r.lstrip()) + shift) + r.lstrip() if r else r for r in rest]
        added = self._parse("\n".join([first.replace("parser.", f"{parser}.", 1), *rest]))
        if option not in self.inserted:
            self.inserted[option] = added
            self.insertions.append(lambda body: self._insert_sorted(body, option, added, places.last_option(body) + 1))

    def insert_check(self, name: str, file: str) -> bool:
        """Insert the function `name` like `insert_function`, and a call of it with the parsed arguments.

        The call stands right behind the line that parses them, so before anything has started; checks stand there by
        name. False, and nothing is inserted, where no top-level function parses them.
        """
        if self.has_function(name) or places.parsing(self.module.body) is None:
            return False
        self.insert_function(name, file)
        if f"{name}()" not in self.inserted:
            args = places.parsed_into(self.module.body, *places.parsing(self.module.body))
            self.inserted[f"{name}()"] = call = self._parse(f"{name}({args})\n")
            self.insertions.append(lambda body: self._insert_call(body, name, call))
        return True

    def _insert_call(self, body: Body, name: str, call: cst.BaseStatement) -> Body:
        index, line = places.parsing(body)
        function = body[index]
        lines = list(function.body.body)
        at = line + 1
        while (
            at < len(lines) and (places.called(lines[at]) or name) < name and places.called(lines[at]) in self.inserted
        ):
            at += 1
        block = function.body.with_changes(body=places.inserted(lines, at, call))
        return [*body[:index], function.with_changes(body=block), *body[index + 1 :]]

    def _first_function(self, body: Body) -> int:
        """Where the script's own functions begin."""
        functions = (i for i, node in enumerate(body) if isinstance(node, cst.FunctionDef) and not self.is_added(node))
        return next(functions, places.end_of_imports(body))

    def _insert_imports(self, source: cst.Module, text: str) -> None:
        """Import what `text`, which is part of `source`, needs of the imports there and the script does not have."""
        for statement, bound in places.imports(source):
            if bound in places.names_in(text) and bound not in (name for _, name in places.imports(self.module)):
                self._insert_import(statement, bound)

    def _insert_import(self, statement: str, bound: str) -> None:
        line = self._parse(f"{statement}\n")
        if statement not in self.inserted:
            self.inserted[statement] = line
            self.insertions.append(lambda body: places.inserted(body, places.place_of_import(body, bound), line))

    def _insert_sorted(self, body: Body, name: str, statement: cst.BaseStatement, at: int) -> Body:
        """Insert at `at`, or among what patches have inserted there before: that is kept in order of `name`."""
        names = {id(node): key for key, node in self.inserted.items()}
        while at < len(body) and names.get(id(body[at]), name) < name:
            at += 1
        while at > 0 and names.get(id(body[at - 1]), name) > name:
            at -= 1
        return places.inserted(body, at, statement)

    def parser_name(self) -> str | None:
        """What the script calls its argparse parser: that on which it calls `parse_args`."""
        nodes = self._nodes(containing="parse_args")
        calls = (node.func.value for node in nodes if syntax.is_method_call(node, "parse_args"))
        return next((parser.value for parser in calls if isinstance(parser, cst.Name)), None)

    def has_option(self, option: str) -> bool:
        """Whether the script has an option of this name already: a second one would make argparse raise."""
        return any(syntax.adds_option(node, option) for node in self._nodes(containing=option))

    def _nodes(self, containing: str) -> Iterator[cst.CSTNode]:
        """Every node of the statements in whose text this stands: to walk through all of a script is slow."""
        for statement in self.module.body:
            if containing in self.text(statement):
                yield from syntax.descendants(statement)

    def has_function(self, *names: str) -> bool:
        """Whether the script has a function of one of these names that is not the one in `patches/added/`."""
        found = {name: self._own_function(name) for name in names}
        return any(
            text is not None and text != _functions_in(self._added_folder())[name] for name, text in found.items()
        )

    def _own_function(self, name: str) -> str | None:
        for node in self.module.body:
            if isinstance(node, _DEFINITIONS) and node.name.value == name:
                code = self.module.code_for_node(node.with_changes(leading_lines=()))
                return code.replace(self.module.default_newline, "\n").strip()
        return None

    @classmethod
    def _added_folder(cls) -> Path:
        return Path(sys.modules[cls.__module__].__file__).parent / "added"

    def is_added(self, statement: cst.CSTNode) -> bool:
        """Whether a statement is a function or class of the name of one that patches insert: no patch looks into it."""
        return isinstance(statement, _DEFINITIONS) and statement.name.value in _names_in(self._added_folder())

    def _added(self, file: str) -> cst.Module:
        here = Path(sys.modules[type(self).__module__].__file__).parent
        return _parsed((here / "added" / file).read_bytes(), file)

    def _parse(self, text: str) -> cst.BaseStatement:
        """One statement in the line ending of the file that it goes to."""
        return cst.parse_module(text.replace("\n", self.module.default_newline)).body[0]

    # The visit.

    @property
    def function(self) -> str:
        """The qualified name of the function or class that is being visited."""
        return ".".join(self._scope) or MODULE

    @property
    def parameters(self) -> list[str]:
        """The positional parameters of the function that is being visited."""
        return self._parameters[-1] if self._parameters else []

    @property
    def args(self) -> str:
        """What the function that is being visited calls the parsed arguments.

        That is its last parameter, and where it has none, the name in the line that parses them.
        """
        if self.parameters:
            return self.parameters[-1]
        parsing = places.parsing(self.module.body)
        return places.parsed_into(self.module.body, *parsing) if parsing else "args"

    def on_visit(self, node: cst.CSTNode) -> bool:
        kind = type(node)
        if kind is cst.FunctionDef or kind is cst.ClassDef:
            self._scope.append(node.name.value)
        if kind is cst.FunctionDef:
            self._parameters.append([parameter.name.value for parameter in node.params.params])
        visit = self._visitors.get(kind)
        return True if visit is None else visit(self, node) is not False

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode):
        kind = type(original)
        if not self.already_done and self.done(original):
            self.already_done = True
        leave = self._leavers.get(kind)
        result = updated if leave is None else leave(self, original, updated)
        if result is not updated:
            self.hits.append((self.function, original))
        if kind is cst.FunctionDef or kind is cst.ClassDef:
            self._scope.pop()
        if kind is cst.FunctionDef:
            self._parameters.pop()
        return result

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave_attribute(self, original: cst.CSTNode, attribute: str) -> None:
        pass


@functools.cache
def _parsed(source: bytes, file: str) -> cst.Module:
    """A file of `patches/added/`, from which several patches insert, some of them into several scripts."""
    try:
        compile(source, file, "exec", dont_inherit=True)  # it says where, LibCST does not
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        raise Problem(f"cannot parse: {error}", file=f"patches/added/{file}", line=line) from None
    return cst.parse_module(source)


@functools.cache
def _names_in(folder: Path) -> frozenset[str]:
    """The names of the functions and classes in `patches/added/`."""
    texts = (path.read_text(encoding="utf-8") for path in folder.glob("[!.]*.py"))
    return frozenset(name for text in texts for name in re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE))


@functools.cache
def _functions_in(folder: Path) -> dict[str, str]:
    """The text of each function and class there."""
    import ast

    found = {}
    for path in folder.glob("[!.]*.py"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                first = min(part.lineno for part in (node, *node.decorator_list))
                found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def flag(value: bool | str) -> bool:
    """An option that is on or off, as a series or `--set` gives it."""
    if value not in (True, False, "true", "false"):
        raise ValueError(f"expected true or false, found {value!r}")
    return value in (True, "true")
