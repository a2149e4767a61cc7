"""What is certain about an option once torchrun has started the script: is it the environment's?

Only then is the option right already.  It has to be the option's own value, on every path: an
attribute of another object, one branch of an `if`, or a further condition do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from patcher.rewrite.arguments import Arguments
from patcher.rewrite.nodes import FUNCTIONS, integer, is_constant, last_name, place, receiver
from patcher.rewrite.script import Binder, Script
from patcher.rewrite.sites import Unsure

VARIABLE = "LOCAL_RANK"
NODE_AND_JOB = ("RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
SET = (VARIABLE, *NODE_AND_JOB, "MASTER_ADDR", "MASTER_PORT")
Seen = tuple[tuple[ast.AST, str], ...]  # names that are being looked at: (scope, name)


class Launched:
    """A script that torchrun has started, without the option `name` on its command line."""

    def __init__(self, script: Script, name: str, default: ast.expr | None):
        self.script, self.name, self.default = script, name, default or ast.Constant(None)

    def reading(self, value: ast.AST, seen: Seen = ()) -> ast.expr | None:
        """What in an expression reads the environment, itself or by a name of the script.

        None if a path does not.
        """
        if isinstance(value, ast.IfExp):
            holds = self._holds(value.test)
            taken = [value.body] * (holds is not False) + [value.orelse] * (holds is not True)
            return self._each(taken, seen)
        if isinstance(value, ast.BoolOp):
            return self._each([v for v in value.values if not isinstance(v, ast.Constant)], seen)
        if isinstance(value, ast.Name) and value.id != "environ":
            return self._bound(value, seen)
        if last_name(value) in ("environ", "getenv") or is_constant(value, VARIABLE):
            return value if isinstance(value, ast.expr) else None
        found = (self.reading(child, seen) for child in ast.iter_child_nodes(value))
        return next(filter(None, found), None)

    def assignment(self) -> ast.Assign | None:
        """What puts LOCAL_RANK into the option's attribute of the arguments, on every path."""
        found = [
            (statement, target.value)
            for statement in self.script.nodes(ast.Assign, near=[self.name])
            for target in statement.targets
            if isinstance(target, ast.Attribute) and target.attr == self.name
            if any(is_constant(node, VARIABLE) for node in ast.walk(statement.value))
        ]
        if not found:
            return None
        try:
            arguments = Arguments(self.script)
        except Unsure:  # of no object is it certain then that it is the parsed arguments
            return None
        for statement, owner in found:
            ours = isinstance(owner, ast.Name) and arguments.gives(owner)
            if ours and self.reading(statement.value) and self._always(statement, arguments):
                return statement
        return None

    def _each(self, values: list[ast.expr], seen: Seen) -> ast.expr | None:
        found = [self.reading(value, seen) for value in values]
        return found[0] if found and all(found) else None

    def _bound(self, name: ast.Name, seen: Seen) -> ast.expr | None:
        """What reads the environment for a variable or a function of the script."""
        script = self.script
        scope, binders = script.lookup(name.id, name)
        if (scope, name.id) in seen:
            return None
        seen = (*seen, (scope, name.id))
        if any(isinstance(binder, FUNCTIONS) for binder in binders):
            returns = [r for r in script.nodes(ast.Return) if script.function(r) in binders]
            return self._first(((r, r.value) for r in returns), seen) if len(binders) == 1 else None
        here = script.function(name)
        earlier = [b for b in binders if script.function(b) is not here or place(b) < place(name)]
        last_first = sorted(earlier, key=place, reverse=True)
        return self._first(((b, self._given(b)) for b in last_first if not self._keeps(b)), seen)

    def _given(self, binder: Binder) -> ast.AST | None:
        """What an assignment gives a name, or what in a class reads the environment."""
        if not isinstance(binder, ast.ClassDef):
            return self.script.value_given(binder)
        reads = (n for n in ast.walk(binder) if last_name(n) in ("environ", "getenv"))
        return next(reads, None)

    def _keeps(self, binder: Binder) -> bool:
        """Whether the new value is made of the old one, as by `rank = int(rank)` or `rank %= 8`."""
        value = self.script.value_given(binder)
        if value is None:
            return isinstance(self.script.parents[binder], ast.AugAssign)
        return any(isinstance(n, ast.Name) and n.id == binder.id for n in ast.walk(value))

    def _first(
        self, values: Iterable[tuple[ast.AST, ast.AST | None]], seen: Seen
    ) -> ast.expr | None:
        """What reads it in the first (node, value) that surely runs, and in all before that."""
        for node, value in values:
            runs = self._runs(node)
            if runs is False:
                continue
            found = self.reading(value, seen) if value is not None else None
            if runs or found is None:
                return found
        return None

    def _always(
        self, statement: ast.stmt, arguments: Arguments, seen: tuple[ast.AST, ...] = ()
    ) -> bool:
        """Whether a statement runs wherever the arguments are parsed."""
        script = self.script
        function = script.function(statement)
        if not self._runs(statement) or function in seen:
            return False
        if function is script.tree:
            return True
        returns = [r for r in script.nodes(ast.Return) if script.function(r) is function]
        ends = any(place(r) < place(statement) for r in returns)
        if ends or not isinstance(function, ast.FunctionDef):
            return False
        if function in arguments.homes():
            return True
        return any(
            self._always(script.statement(call), arguments, (*seen, function))
            for call in script.nodes(ast.Call)
            if isinstance(call.func, ast.Name) and function in script.binders_of(call.func)
        )

    def _runs(self, node: ast.AST) -> bool | None:
        """Whether a statement runs whenever its function does; None if that is not certain."""
        below: ast.AST = self.script.statement(node)
        runs: bool | None = True
        for parent in self.script.ancestors(below):
            if isinstance(parent, (*FUNCTIONS, ast.ClassDef)):
                break
            here: bool | None = True
            if isinstance(parent, ast.If):
                here = self._holds(parent.test)
                here = not here if here is not None and below in parent.orelse else here
            elif isinstance(parent, ast.Try):  # to read a variable that torchrun sets never fails
                handled = len(parent.body) == 1 and isinstance(below, ast.ExceptHandler)
                here = below is parent.body[0] or (False if handled else None)
            elif not isinstance(parent, (ast.With, ast.ExceptHandler, ast.Module)):
                here = None
            if here is False:
                return False
            below, runs = parent, runs and here
        return runs

    def _holds(self, test: ast.expr) -> bool | None:
        """Whether a condition is true; None if that is not certain."""
        if isinstance(test, ast.BoolOp):
            values = [self._holds(value) for value in test.values]
            decides = isinstance(test.op, ast.Or)
            return decides if decides in values else None if None in values else not decides
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            holds = self._holds(test.operand)
            return None if holds is None else not holds
        if not isinstance(test, ast.Compare):
            return self._is_set(test) or None
        if len(test.ops) != 1:
            return None
        left, op, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(op, (ast.In, ast.NotIn)) and is_constant(left, *SET):
            return isinstance(op, ast.In) if any(map(self._is_environ, ast.walk(right))) else None
        if isinstance(op, (ast.Is, ast.IsNot)) and is_constant(right, None) and self._is_set(left):
            return isinstance(op, ast.IsNot)
        if isinstance(op, ast.Eq) and last_name(left) == "__name__":
            return True
        if isinstance(op, (ast.Eq, ast.Is)) and isinstance(left, ast.Attribute):
            default = self.default
            none = is_constant(right, None) and is_constant(default, None)
            same = none or (integer(right) is not None and integer(right) == integer(default))
            return True if same and left.attr == self.name else None
        return None

    def _is_set(self, value: ast.expr) -> bool:
        """`os.environ.get("RANK")`, `os.getenv("RANK")` or `os.environ["RANK"]`."""
        if isinstance(value, ast.Subscript):
            return self._is_environ(value.value) and is_constant(value.slice, *SET)
        if not (isinstance(value, ast.Call) and value.args and is_constant(value.args[0], *SET)):
            return False
        mapping = receiver(value, "get")
        if mapping is not None:
            return self._is_environ(mapping)
        return last_name(value.func) == "getenv"

    def _is_environ(self, node: ast.AST) -> bool:
        """`os.environ`, or a name for it."""
        if not isinstance(node, ast.Name):
            return last_name(node) == "environ"
        aliases = [b for b in self.script.binders_of(node) if isinstance(b, ast.alias)]
        imported = any(alias.name == "environ" for alias in aliases)
        return imported or last_name(self.script.value_of(node)) == "environ"
