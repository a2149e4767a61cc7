"""A script that is not ours: its text, its syntax tree, and where in the text each node stands.

Python's own parser reads it, ten times as fast as LibCST and with no import to pay for, and an
edit replaces a few characters at positions that it gives.  So what no edit names cannot change,
be it a comment, a space or a line ending.
"""

from __future__ import annotations

import ast
import bisect
import contextlib
import copy
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from patcher.core.problem import Problem
from patcher.core.text import encoding_of, unreadable
from patcher.rewrite.nodes import FUNCTIONS, Placed, first_line, last_line, last_name, place
from patcher.rewrite.sites import Edit, Unsure, apply

Node = TypeVar("Node", bound=ast.AST)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Python has one object for all of a kind of these, with no position.
TOKENS = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
BINDERS = {  # what binds a name, and the field with that name
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), "name"),
    **dict.fromkeys((ast.alias, ast.ExceptHandler, ast.MatchAs, ast.MatchStar), "name"),
    ast.Name: "id",
    ast.arg: "arg",
    ast.MatchMapping: "rest",
}
Binder = Any  # a node of one of these types: all have a position


class Script:
    """The text and the tree of a script; the text is without the BOM, with the file's line ends.

    Raises Problem if there is no tree, or if edits of the text might not fit the file.
    """

    def __init__(self, file: str, source: bytes):
        self.file, self.source = file, source
        self.text, self.encoding = decode(file, source)
        self.newline = "\r\n" if self.text.partition("\n")[0].endswith("\r") else "\n"
        self._hold(parse(file, self.text))
        self.fresh = self.tree

    def _hold(self, tree: ast.Module) -> None:
        """Take `tree` for the tree of `text`."""
        self.tree = tree
        self._lines = self.text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.parents: dict[ast.AST, Any] = dict.fromkeys(tree.body, tree)
        self._by_type: dict[type[ast.AST], list[Any]] = {}
        self._bound: dict[str | None, list[Binder]] = {}  # by name
        self._unknown = dict.fromkeys(tree.body)  # top-level statements that nobody has looked into

    def edited(self, edits: Sequence[Edit]) -> Script:
        """This script after `edits`; its `fresh` is a module of what had to be parsed again.

        If the lines stay, that is only the top-level statements with an edit: each begins at the
        margin with no bracket or string open, so the file parses if its statements do.
        Raises Problem if they do not.
        """
        text = apply(self.text, edits)
        if any("\n" in edit.text or "\n" in self.text[edit.start : edit.end] for edit in edits):
            return Script(self.file, text.encode(self.encoding))
        new = copy.copy(self)
        new.text = text
        body: list[ast.stmt] = []
        new.fresh = ast.Module([], [])
        lines = [bisect.bisect_right(self._starts, edit.start) for edit in edits]
        new._hold(new.fresh)
        for group in self._sharing_lines():
            first, last = first_line(group[0]), last_line(group[-1])
            if any(first <= line <= last for line in lines):
                block = text[new.line_start(first) : new.line_start(last + 1)]
                parsed = parse(self.file, "\n" * (first - 1) + block).body
                if len(parsed) != len(group):
                    why = "internal error: an edit has made other statements"
                    raise Problem(why, file=self.file, line=first)
                new.fresh.body += parsed
                body += parsed
            else:
                body += group
        new._hold(ast.Module(body, []))
        return new

    def _sharing_lines(self) -> Iterator[list[ast.stmt]]:
        """The top-level statements, those together that share a line."""
        group: list[ast.stmt] = []
        for statement in self.tree.body:
            if group and statement.lineno != last_line(group[-1]):
                yield group
                group = []
            group.append(statement)
        if group:
            yield group

    def _look_into(self, words: Sequence[str] | None) -> None:
        """Index the top-level statements with one of `words` in them, or all: to walk is slow."""
        for statement in list(self._unknown):
            first, end = self._starts[first_line(statement) - 1], self._starts[last_line(statement)]
            if words is None or any(self.text.find(word, first, end) >= 0 for word in words):
                del self._unknown[statement]
                self._index(statement)

    def _index(self, statement: ast.stmt) -> None:
        parents, by_type = self.parents, self._by_type
        todo: list[ast.AST] = [statement]
        while todo:
            parent = todo.pop()
            kind = parent.__class__
            by_type.setdefault(kind, []).append(parent)
            read = isinstance(parent, ast.Name) and isinstance(parent.ctx, ast.Load)
            if kind in BINDERS and not read:
                self._bound.setdefault(_bound_name(parent), []).append(parent)
            for value in parent.__dict__.values():
                if value.__class__ is list:
                    for child in value:
                        if isinstance(child, ast.AST) and not isinstance(child, TOKENS):
                            parents[child] = parent
                            todo.append(child)
                elif isinstance(value, ast.AST) and not isinstance(value, TOKENS):
                    parents[value] = parent
                    todo.append(value)

    # Nodes and their text.

    def nodes(self, *kinds: type[Node], near: Sequence[str] | None = None) -> list[Node]:
        """All nodes of these types, sorted; or at least those in statements with a word of `near`.

        The second is for what cannot be without such a word.
        """
        self._look_into(near)
        return sorted((n for kind in kinds for n in self._by_type.get(kind, ())), key=place)

    def calls(self, *names: str) -> list[ast.Call]:
        """All calls of `name` or `anything.name`, for any of the names."""
        return [call for call in self.nodes(ast.Call) if last_name(call.func) in names]

    def naming(self, word: str) -> list[ast.Constant | ast.keyword]:
        """All strings and keyword arguments that are `word`."""
        found: list[ast.Constant | ast.keyword] = self.nodes(ast.Constant, ast.keyword)
        return [n for n in found if (n.arg if isinstance(n, ast.keyword) else n.value) == word]

    def span(self, node: Placed) -> tuple[int, int]:
        """Where `node` begins and ends in `text`."""
        end = self._at(node.end_lineno or 0, node.end_col_offset or 0)
        return self._at(node.lineno, node.col_offset), end

    def code(self, node: Placed) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def replacing(self, node: Placed, text: str) -> Edit:
        """Put `text` in the place of `node`.  Raises Unsure if a comment in it would be lost."""
        if "#" in self.code(node):
            raise Unsure("there is a comment in what would be replaced")
        return Edit(*self.span(node), text)

    def line(self, number: int) -> str:
        return self._lines[number - 1]

    def line_start(self, number: int) -> int:
        """Where line `number` begins; after the last line, where the text ends."""
        return min(self._starts[number - 1], len(self.text))

    def column(self, node: Placed) -> int:
        """The column of `node` in characters, from 1."""
        return self.span(node)[0] - self.line_start(node.lineno) + 1

    def _at(self, line: int, offset: int) -> int:
        line = min(line, len(self._lines))  # in an f-string, Python before 3.12 may point anywhere
        text = self._lines[line - 1]
        if not text.isascii():  # offsets are in bytes of UTF-8
            offset = len(text.encode()[:offset].decode(errors="replace"))
        return self._starts[line - 1] + offset

    # What is around a node.

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """From the parent of `node` to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that `node` is or is in."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> ast.AST:
        """The innermost function whose body `node` is in, or the module."""
        scope = self.scope(node)
        while not isinstance(scope, (*FUNCTIONS, ast.Module)):
            scope = self.scope(scope)
        return scope

    def in_f_string(self, node: ast.AST) -> bool:
        """Whether `node` is in an f-string, where Python before 3.12 tells no positions."""
        return any(isinstance(parent, ast.JoinedStr) for parent in self.ancestors(node))

    def precedes(self, first: ast.AST, second: ast.AST) -> bool:
        """Whether the statement of `first` has always run before that of `second`.

        It has if one block holds both in this order.
        """
        first = self.statement(first)
        block = self._block(first)
        for node in (second, *self.ancestors(second)):
            if isinstance(node, ast.stmt) and self._block(node) is block:
                return first is not node and place(first) < place(node)
        return False

    def _block(self, statement: ast.stmt) -> list[ast.stmt] | None:
        """The list of statements that `statement` stands in."""
        for value in self.parents[statement].__dict__.values():
            if isinstance(value, list) and any(child is statement for child in value):
                return value
        return None

    # Names and what binds them.

    def scope(self, node: ast.AST) -> ast.AST:
        """The function, class, comprehension or module in which a name at `node` is looked up."""
        asked = below = node
        for parent in self.ancestors(node):
            if isinstance(parent, FUNCTIONS):
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                # Defaults, annotations and decorators belong outside, parameters to the function.
                of_function = isinstance(node, ast.arguments) and below is asked
                parameter = of_function and isinstance(asked, ast.arg)
                if parameter or any(child is node for child in body):
                    return parent
            elif isinstance(parent, COMPREHENSIONS) or (
                isinstance(parent, ast.ClassDef) and any(child is node for child in parent.body)
            ):
                return parent
            below, node = node, parent
        return self.tree

    def binders(self, name: str) -> list[tuple[ast.AST, Binder]]:
        """All that binds or unbinds `name`, each with its scope."""
        # A name that is not ASCII may be spelled in several ways.
        self._look_into([name] if name.isascii() and self.text.isascii() else None)
        found = []
        for node in sorted(self._bound.get(name, ()), key=place):
            scope = self.scope(node)
            if isinstance(self.parents[node], ast.NamedExpr):
                while isinstance(scope, COMPREHENSIONS):
                    scope = self.scope(scope)
            found.append((self._declared(scope, name), node))
        return found

    def _declared(self, scope: ast.AST, name: str) -> ast.AST:
        """The scope that owns a name bound in `scope`: another one after `global` or `nonlocal`."""
        for kind in (ast.Global, ast.Nonlocal):
            for declaration in self._by_type.get(kind, ()):
                if name in declaration.names and self.scope(declaration) is scope:
                    outer = self.scope(scope)
                    return self.tree if kind is ast.Global else self._declared(outer, name)
        return scope

    def lookup(self, name: str, node: ast.AST) -> tuple[ast.AST, list[Binder]]:
        """The scope whose `name` is seen at `node`, and what binds it there.

        If nothing does, that is the module and an empty list.
        """
        binders = self.binders(name)
        first = scope = self.scope(node)
        while True:
            if scope is first or not isinstance(scope, ast.ClassDef):
                declared = self._declared(scope, name)
                here = [binder for owner, binder in binders if owner is declared]
                if here or scope is self.tree:
                    return declared, here
            scope = self.scope(scope)

    def lookup_in(self, name: str, scope: ast.AST) -> list[Binder]:
        """What binds `name` in this very scope."""
        return [binder for owner, binder in self.binders(name) if owner is scope]

    def binders_of(self, name: ast.Name) -> list[Binder]:
        """What binds a name where it stands."""
        return self.lookup(name.id, name)[1]

    def value_given(self, binder: ast.AST) -> ast.expr | None:
        """The value in an assignment `name = value` to this very target."""
        parent = self.parents.get(binder)
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            return parent.value if isinstance(binder, ast.Name) else None
        return None

    def value_of(self, name: ast.expr) -> ast.expr | None:
        """What a name stands for, if a single assignment `name = value` binds it."""
        binders = self.binders_of(name) if isinstance(name, ast.Name) else []
        return self.value_given(binders[0]) if len(binders) == 1 else None


def _bound_name(binder: Binder) -> str | None:
    """The name that a node binds; None for a pattern that binds none."""
    name: str | None = getattr(binder, "asname", None) or getattr(binder, BINDERS[type(binder)])
    return name and name.partition(".")[0]


def decode(file: str, source: bytes) -> tuple[str, str]:
    """The text of a script and its encoding.  Raises Problem if edits might not fit its bytes."""
    encoding = encoding_of(file, source)
    text = source.decode(encoding)
    if text.encode(encoding) != source:
        raise unreadable(file, 0, 0, f"{encoding} text that would not be written as it was read")
    unix = text.replace("\r\n", "\n")
    if "\r" in unix:
        line = unix.partition("\r")[0].count("\n") + 1
        why = "a lone carriage return, which only some programs take for a line's end"
        raise unreadable(file, line, 0, why)
    return text, encoding


def parse(file: str, text: str) -> ast.Module:
    """The tree of `text`.  Raises Problem if this Python cannot parse it."""
    with _readable(file, text):
        return ast.parse(text, file)


def compile_tree(file: str, tree: ast.Module) -> None:
    """Raise Problem if a tree does not compile: some mistakes are no mistakes of syntax."""
    with _readable(file):
        compile(tree, file, "exec", dont_inherit=True)


@contextlib.contextmanager
def _readable(file: str, text: str = "") -> Iterator[None]:
    """Raise Problem for what Python says of `text`, which is not shown its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SyntaxError as error:
        why = _worded(error, text)
        raise unreadable(file, error.lineno or 0, error.offset or 0, why) from None
    except (RecursionError, MemoryError):
        raise unreadable(file, 0, 0, "nested too deeply") from None
    except ValueError as error:
        raise unreadable(file, 0, 0, str(error)) from None


def _worded(error: SyntaxError, text: str) -> str:
    lines = text.split("\n")
    line = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
    if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ")):
        return "a merge that nobody has finished: its markers are still there"
    at = max(0, (error.offset or 0) - 1)  # before or after the word, by what follows it
    if line[at:].startswith("async") or re.search(r"\basync\s*$", line[:at]):
        return "`async` is a keyword since Python 3.7 and cannot be a name: rename it"
    return error.msg
