"""A script that is not ours: its text, its syntax tree, and where in the text each node stands.

Python's own parser reads it, ten times as fast as LibCST and with no import to pay for, and an
edit replaces a few characters at positions that it gives.  Nothing is printed anew: what no edit
names cannot change, be it a comment, a space or a line ending.
"""

from __future__ import annotations

import ast
import bisect
import copy
import re
import warnings
from collections.abc import Iterator, Sequence

from patcher.core.problem import Problem
from patcher.core.text import encoding_of, unreadable
from patcher.rewrite.nodes import COMPREHENSIONS, FUNCTIONS, TOKENS, first_line, place
from patcher.rewrite.sites import Edit, Unsure, apply


class Script:
    """The text and the tree of a script.  Raises Problem where it has none, or text that edits might not fit.

    `text` is without the BOM, and lines in it end as they do in the file.
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
        self.parents: dict[ast.AST, ast.AST] = dict.fromkeys(tree.body, tree)
        self._by_type: dict[type, list] = {}
        self._unknown = dict.fromkeys(tree.body)  # top-level statements that nobody has looked into

    def edited(self, edits: Sequence[Edit]) -> Script:
        """This script after `edits`, with `fresh` for a module of what had to be parsed anew.

        Where no line is added or taken away, that is only the lines of the top-level statements with an edit in them: a
        statement begins at the margin with no bracket or string open, so the file parses if its statements do.
        Raises Problem where they do not.
        """
        text = apply(self.text, edits)
        if any("\n" in edit.text or "\n" in self.text[edit.start : edit.end] for edit in edits):
            return Script(self.file, text.encode(self.encoding))
        new = copy.copy(self)
        new.text = text
        new._hold(ast.Module(list(self.tree.body), []))
        lines = [bisect.bisect_right(self._starts, edit.start) for edit in edits]
        new.fresh = ast.Module([], [])
        at = 0
        while at < len(self.tree.body):
            end = self._end_of_lines(at)
            first, last = first_line(self.tree.body[at]), self.tree.body[end - 1].end_lineno
            if any(first <= line <= last for line in lines):
                block = text[new.line_start(first) : new.line_start(last + 1)]
                body = parse(self.file, "\n" * (first - 1) + block).body
                if len(body) != end - at:
                    raise Problem(
                        "a fault of patcher: an edit has made other statements",
                        file=self.file,
                        line=first,
                    )
                new.tree.body[at:end] = body
                new.fresh.body += body
            at = end
        new._hold(new.tree)
        return new

    def _end_of_lines(self, at: int) -> int:
        """Behind the last of the top-level statements that share lines with number `at`."""
        body = self.tree.body
        end = at + 1
        while end < len(body) and body[end].lineno == body[end - 1].end_lineno:
            end += 1
        return end

    def _look_into(self, words: Sequence[str] | None) -> None:
        """Index the top-level statements in whose text one of `words` is, or all: to walk through a script is slow."""
        for statement in list(self._unknown):
            first, end = self._starts[first_line(statement) - 1], self._starts[statement.end_lineno]
            if words is None or any(self.text.find(word, first, end) >= 0 for word in words):
                del self._unknown[statement]
                self._index(statement)

    def _index(self, statement: ast.stmt) -> None:
        parents, by_type, todo = self.parents, self._by_type, [statement]
        while todo:
            parent = todo.pop()
            by_type.setdefault(parent.__class__, []).append(parent)
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

    def nodes(self, *kinds: type, near: Sequence[str] | None = None) -> list:
        """All nodes of these types in the order of the text; or those in top-level statements with a word of `near`.

        The second is for what cannot be without such a word, and may give more than that.
        """
        self._look_into(near)
        found = [node for kind in kinds for node in self._by_type.get(kind, ())]
        return sorted(found, key=place)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where `node` begins and ends in `text`."""
        return self._at(node.lineno, node.col_offset), self._at(
            node.end_lineno, node.end_col_offset
        )

    def code(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def replacing(self, node: ast.AST, text: str) -> Edit:
        """Put `text` in the place of `node`.  Raises Unsure where a comment stands in it, which would be lost."""
        if "#" in self.code(node):
            raise Unsure("there is a comment in what would be replaced")
        return Edit(*self.span(node), text)

    def line(self, number: int) -> str:
        return self._lines[number - 1]

    def line_start(self, number: int) -> int:
        """Where line `number` begins; behind the last line, where the text ends."""
        return min(self._starts[number - 1], len(self.text))

    def column(self, node: ast.AST) -> int:
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
        """Whether `node` is in an f-string, inside which Python before 3.12 tells no positions."""
        return any(isinstance(parent, ast.JoinedStr) for parent in self.ancestors(node))

    def precedes(self, first: ast.AST, second: ast.AST) -> bool:
        """Whether the statement of `first` has always run before that of `second`: one block holds both in order."""
        first = self.statement(first)
        block = self._block(first)
        for node in (second, *self.ancestors(second)):
            if isinstance(node, ast.stmt) and self._block(node) is block:
                return first is not node and place(first) < place(node)
        return False

    def _block(self, statement: ast.stmt) -> list | None:
        """The list of statements that `statement` stands in."""
        for value in self.parents[statement].__dict__.values():
            if value.__class__ is list and any(child is statement for child in value):
                return value
        return None

    # Names and what binds them.

    def scope(self, node: ast.AST) -> ast.AST:
        """The function, lambda, class, comprehension or module in which a name at `node` would be looked up first."""
        asked = below = node
        for parent in self.ancestors(node):
            if isinstance(parent, FUNCTIONS):
                body = parent.body if isinstance(parent.body, list) else [parent.body]
                # Defaults, annotations and decorators belong to the scope outside, parameters to the function.
                parameter = (
                    isinstance(node, ast.arguments)
                    and below is asked
                    and isinstance(asked, ast.arg)
                )
                if parameter or any(child is node for child in body):
                    return parent
            elif isinstance(parent, ast.ClassDef):
                if any(child is node for child in parent.body):
                    return parent
            elif isinstance(parent, COMPREHENSIONS):
                return parent
            below, node = node, parent
        return self.tree

    def binders(self, name: str) -> list[tuple[ast.AST, ast.AST]]:
        """All that binds or unbinds `name`: (scope, node); a node is a target, parameter, definition or alias."""
        # A name that is not ASCII may be spelled in several ways.
        self._look_into([name] if name.isascii() and self.text.isascii() else None)
        found = []
        for node in self._binding_nodes(name):
            scope = self.scope(node)
            while isinstance(scope, COMPREHENSIONS) and isinstance(
                self.parents[node], ast.NamedExpr
            ):
                scope = self.scope(scope)
            found.append((self._declared(scope, name), node))
        return found

    def _binding_nodes(self, name: str) -> Iterator[ast.AST]:
        for node in self._by_type.get(ast.Name, ()):
            if node.id == name and not isinstance(node.ctx, ast.Load):
                yield node
        for node in self._by_type.get(ast.arg, ()):
            if node.arg == name:
                yield node
        for node in self._by_type.get(ast.alias, ()):
            if (node.asname or node.name.partition(".")[0]) == name:
                yield node
        for kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler):
            for node in self._by_type.get(kind, ()):
                if node.name == name:
                    yield node
        for kind in (ast.MatchAs, ast.MatchStar):
            for node in self._by_type.get(kind, ()):
                if node.name == name:
                    yield node
        for node in self._by_type.get(ast.MatchMapping, ()):
            if node.rest == name:
                yield node

    def _declared(self, scope: ast.AST, name: str) -> ast.AST:
        """The scope that a name bound in `scope` belongs to: another one after `global` or `nonlocal`."""
        for kind in (ast.Global, ast.Nonlocal):
            for declaration in self._by_type.get(kind, ()):
                if name in declaration.names and self.scope(declaration) is scope:
                    outer = self.scope(scope)
                    return self.tree if kind is ast.Global else self._declared(outer, name)
        return scope

    def lookup(self, name: str, node: ast.AST) -> tuple[ast.AST, list[ast.AST]]:
        """The scope whose `name` is seen at `node`, and what binds it there; the module and nothing where none does."""
        binders = self.binders(name)
        first = scope = self.scope(node)
        while True:
            if scope is first or not isinstance(scope, ast.ClassDef):
                declared = self._declared(scope, name)
                here = [binder for owner, binder in binders if owner is declared]
                if here or scope is self.tree:
                    return declared, here
            scope = self.scope(scope)

    def lookup_in(self, name: str, scope: ast.AST) -> list[ast.AST]:
        """What binds `name` in this very scope."""
        return [binder for owner, binder in self.binders(name) if owner is scope]

    def value_of(self, name: ast.Name) -> ast.expr | None:
        """What a name stands for, where a single assignment `name = value` binds it."""
        _, binders = self.lookup(name.id, name)
        if len(binders) != 1:
            return None
        statement = self.parents.get(binders[0])
        if isinstance(statement, ast.Assign) and binders[0] in statement.targets:
            return statement.value
        if isinstance(statement, ast.AnnAssign) and statement.target is binders[0]:
            return statement.value
        return None


def decode(file: str, source: bytes) -> tuple[str, str]:
    """The text of a script and its encoding.  Raises Problem where edits of the text might not fit its bytes."""
    encoding = encoding_of(file, source)
    text = source.decode(encoding)
    if text.encode(encoding) != source:
        raise unreadable(file, 0, 0, f"{encoding} text that would not be written as it was read")
    if "\r" in text and "\r" in text.replace("\r\n", ""):
        line = text.replace("\r\n", "\n").partition("\r")[0].count("\n") + 1
        raise unreadable(
            file, line, 0, "a lone carriage return, which only some programs take for a line's end"
        )
    return text, encoding


def parse(file: str, text: str) -> ast.Module:
    """The tree of `text`.  Raises Problem where this Python does not compile it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, file)
    except SyntaxError as error:
        raise unreadable(file, error.lineno or 0, error.offset or 0, _worded(error, text)) from None
    except (RecursionError, MemoryError):
        raise unreadable(file, 0, 0, "nested too deeply") from None
    except ValueError as error:
        raise unreadable(file, 0, 0, str(error)) from None
    return tree


def compile_tree(file: str, tree: ast.Module) -> None:
    """Raise Problem where a tree does not compile: some mistakes are no mistakes of syntax."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise unreadable(file, error.lineno or 0, error.offset or 0, error.msg) from None
    except (RecursionError, MemoryError):
        raise unreadable(file, 0, 0, "nested too deeply") from None


def _worded(error: SyntaxError, text: str) -> str:
    lines = text.split("\n")
    line = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
    if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ")):
        return "a merge that nobody has finished: its markers are still there"
    at = max(0, (error.offset or 0) - 1)  # before or after the word, by what follows it
    if line[at:].startswith("async") or re.search(r"\basync\s*$", line[:at]):
        return "`async` is a keyword since Python 3.7 and cannot be a name: rename it"
    return error.msg
