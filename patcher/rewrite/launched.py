"""What is certain about an option once torchrun has started the script: does its value come from the environment?

Only then is the option right already.  So it has to be the option's own value, and it has to be so on every path: an
attribute of another object, one branch of an `if`, or a condition such as `args.use_env and ...` do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from patcher.rewrite.arguments import Arguments
from patcher.rewrite.nodes import FUNCTIONS, integer, is_constant, last_name, place
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Unsure

VARIABLE = "LOCAL_RANK"
SET = (
    VARIABLE,
    "RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
Seen = tuple[tuple[ast.AST, str], ...]  # names that are being looked at: (scope, name)


class Launched:
    """A script that torchrun has started, without the option `name` on its command line."""

    def __init__(self, script: Script, name: str, default: ast.expr | None):
        self.script, self.name, self.default = script, name, default or ast.Constant(None)

    def reading(self, value: ast.expr, seen: Seen = ()) -> ast.AST | None:
        """What in an expression reads the environment, itself or by a name of the script; None if a path does not."""
        if isinstance(value, ast.IfExp):
            holds = self._holds(value.test)
            taken = [value.body] * (holds is not False) + [value.orelse] * (holds is not True)
            return self._each(taken, seen)
        if isinstance(value, ast.BoolOp):
            return self._each([v for v in value.values if not isinstance(v, ast.Constant)], seen)
        if isinstance(value, ast.Name) and value.id != "environ":
            return self._bound(value, seen)
        if last_name(value) in ("environ", "getenv") or is_constant(value, VARIABLE):
            return value
        return next(
            filter(None, (self.reading(child, seen) for child in ast.iter_child_nodes(value))), None
        )

    def assignment(self) -> ast.Assign | None:
        """What puts LOCAL_RANK into the option's attribute of the parsed arguments, on every path."""
        found = [
            (statement, target.value)
            for statement in self.script.nodes(ast.Assign, near=[self.name])
            for target in statement.targets
            if isinstance(target, ast.Attribute)
            and target.attr == self.name
            and isinstance(target.value, ast.Name)
            if any(is_constant(node, VARIABLE) for node in ast.walk(statement.value))
        ]
        try:
            arguments = Arguments(self.script) if found else None
        except Unsure:  # of no object is it certain then that it is the parsed arguments
            return None
        for statement, owner in found:
            if (
                arguments.is_name(owner)
                and self.reading(statement.value)
                and self._always(statement, arguments)
            ):
                return statement
        return None

    def _each(self, values: list[ast.expr], seen: Seen) -> ast.AST | None:
        found = [self.reading(value, seen) for value in values]
        return found[0] if found and all(found) else None

    def _bound(self, name: ast.Name, seen: Seen) -> ast.AST | None:
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
        return self._first(
            (
                (b, self._given(b, name.id))
                for b in sorted(earlier, key=place, reverse=True)
                if not self._keeps(b)
            ),
            seen,
        )

    def _given(self, binder: ast.AST, name: str) -> ast.expr | None:
        if isinstance(binder, ast.ClassDef):
            return next(
                (node for node in ast.walk(binder) if last_name(node) in ("environ", "getenv")),
                None,
            )
        return (
            getattr(self.script.parents[binder], "value", None)
            if isinstance(binder, ast.Name)
            else None
        )

    def _keeps(self, binder: ast.AST) -> bool:
        """Whether an assignment makes the new value of the old one, such as `rank = int(rank)` or `rank %= 8`."""
        statement = self.script.parents[binder]
        if isinstance(statement, ast.AugAssign):
            return True
        value = self._given(binder, "") if isinstance(binder, ast.Name) else None
        return value is not None and any(
            isinstance(n, ast.Name) and n.id == binder.id for n in ast.walk(value)
        )

    def _first(
        self, values: Iterable[tuple[ast.AST, ast.expr | None]], seen: Seen
    ) -> ast.AST | None:
        """What reads the environment in the first of these (node, value) that surely runs, and in all before it."""
        for node, value in values:
            runs = self._runs(node)
            if runs is False:
                continue
            found = self.reading(value, seen) if isinstance(value, ast.AST) else None
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
        ends = [
            r
            for r in script.nodes(ast.Return)
            if script.function(r) is function and place(r) < place(statement)
        ]
        if ends or not isinstance(function, ast.FunctionDef):
            return False
        if function in arguments.homes():
            return True
        calls = [c for c in script.nodes(ast.Call) if isinstance(c.func, ast.Name)]
        calls = [c for c in calls if function in script.lookup(c.func.id, c.func)[1]]
        return any(self._always(script.statement(c), arguments, (*seen, function)) for c in calls)

    def _runs(self, node: ast.AST) -> bool | None:
        """Whether a statement runs whenever the function that it is in does; None if that is not certain."""
        below, runs = self.script.statement(node), True
        for parent in self.script.ancestors(below):
            if isinstance(parent, (*FUNCTIONS, ast.ClassDef)):
                break
            here: bool | None = True
            if isinstance(parent, ast.If):
                here = self._holds(parent.test)
                here = not here if here is not None and below in parent.orelse else here
            elif isinstance(parent, ast.Try):
                short = len(parent.body) == 1  # to read a variable that torchrun sets does not fail
                here = (
                    True
                    if below is parent.body[0]
                    else False
                    if short and below in parent.handlers
                    else None
                )
            elif not isinstance(parent, (ast.With, ast.ExceptHandler, ast.Module)):
                here = None
            if here is False:
                return False
            below, runs = parent, runs and here
        return runs

    def _holds(self, test: ast.expr) -> bool | None:
        """Whether a condition is true; None if that is not certain."""
        if isinstance(test, ast.BoolOp):
            values, decides = (
                [self._holds(value) for value in test.values],
                isinstance(test.op, ast.Or),
            )
            return decides if decides in values else None if None in values else not decides
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            holds = self._holds(test.operand)
            return None if holds is None else not holds
        if not isinstance(test, ast.Compare):
            return True if self._is_set(test) else None
        if len(test.ops) != 1:
            return None
        left, op, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(op, (ast.In, ast.NotIn)) and is_constant(left, *SET):
            return isinstance(op, ast.In) if any(map(self._is_environ, ast.walk(right))) else None
        if isinstance(op, (ast.Is, ast.IsNot)) and is_constant(right, None) and self._is_set(left):
            return isinstance(op, ast.IsNot)
        if isinstance(op, ast.Eq) and last_name(left) == "__name__":
            return True
        if (
            isinstance(op, (ast.Eq, ast.Is))
            and isinstance(left, ast.Attribute)
            and left.attr == self.name
        ):
            none = is_constant(right, None) and is_constant(self.default, None)
            return (
                True
                if none or (integer(right) is not None and integer(right) == integer(self.default))
                else None
            )
        return None

    def _is_set(self, value: ast.expr) -> bool:
        """`os.environ.get("RANK")`, `os.getenv("RANK")` or `os.environ["RANK"]`, which torchrun sets."""
        if isinstance(value, ast.Subscript):
            return self._is_environ(value.value) and is_constant(value.slice, *SET)
        if (
            not isinstance(value, ast.Call)
            or not value.args
            or not is_constant(value.args[0], *SET)
        ):
            return False
        of_environ = isinstance(value.func, ast.Attribute) and self._is_environ(value.func.value)
        return last_name(value.func) == "getenv" or (of_environ and value.func.attr == "get")

    def _is_environ(self, node: ast.AST) -> bool:
        """`os.environ`, or a name for it."""
        if not isinstance(node, ast.Name):
            return last_name(node) == "environ"
        _, binders = self.script.lookup(node.id, node)
        imported = any(
            isinstance(binder, ast.alias) and binder.name == "environ" for binder in binders
        )
        return imported or last_name(self.script.value_of(node)) == "environ"
