"""The argparse parser of a script: where an option can be added, and what the parsed arguments are called where."""

from __future__ import annotations

import ast

from patcher.rewrite.nodes import FUNCTIONS, is_constant, keyword, last_name, place
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Unsure

TAKE_ANY = ("dict", "format", "print", "Namespace", "SimpleNamespace")
FUNCTION_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Arguments:
    """The one parser of a script and the names of what it parses.  Raises Unsure where there is not exactly one."""

    parser: str
    """What the parser is called where it parses."""

    def __init__(self, script: Script):
        self.script = script
        made = [
            c
            for c in script.nodes(ast.Call)
            if last_name(c.func).lower().endswith(("argumentparser", "argparser"))
        ]
        if not made:
            raise Unsure("there is no argparse parser in this script to add --gpus to")
        parsing = [
            c
            for c in script.nodes(ast.Call)
            if last_name(c.func) in ("parse_args", "parse_known_args")
        ]
        if len(made) > 1 or len(parsing) != 1:
            raise Unsure(f"this script makes {len(made)} parsers and parses {len(parsing)} times")
        self.parsing = parsing[0]
        receiver = self.parsing.func.value if isinstance(self.parsing.func, ast.Attribute) else None
        if not isinstance(receiver, ast.Name) or script.value_of(receiver) is not made[0]:
            raise Unsure(
                f"the parser of line {made[0].lineno} has no certain name in line {self.parsing.lineno}"
            )
        self.parser = receiver.id
        self._made = script.statement(made[0])
        self._makers: list[ast.AST] = []
        self._names: list[
            tuple[ast.AST, str]
        ] = []  # (scope, name) of everything that is certainly the arguments
        for _ in range(8):
            known = len(self._makers), len(self._names)
            self._learn()
            if known == (len(self._makers), len(self._names)):
                break

    def refuse_option(self, name: str) -> None:
        """Raise Unsure where the script has an option or an argument of this name."""
        for call in self.script.nodes(ast.Call):
            if last_name(call.func) != "add_argument":
                continue
            dest = keyword(call, "dest")
            if any(is_constant(a, f"--{name}", name) for a in call.args) or (
                dest and is_constant(dest.value, name)
            ):
                raise Unsure(f"this script has --{name} already, in line {call.lineno}")
        for node in self.script.nodes(ast.Attribute):
            if node.attr == name and isinstance(node.value, ast.Name) and self.is_name(node.value):
                raise Unsure(
                    f"this script uses {node.value.id}.{name} already, in line {node.lineno}"
                )

    def refuse_handing_on(self, name: str) -> None:
        """Raise Unsure where `f(**vars(args))` would pass a new option of this name to what may not take it."""
        script = self.script
        for call in script.nodes(ast.Call):
            if last_name(call.func) in TAKE_ANY:
                continue
            unpacked = [k.value for k in call.keywords if k.arg is None]
            unpacked += [a.value for a in call.args if isinstance(a, ast.Starred)]
            for value in unpacked:
                made = (script.value_of(value) if isinstance(value, ast.Name) else None) or value
                if any(_all_of_an_object(node) for node in ast.walk(made)):
                    what = f"`{script.code(call.func)}` in line {call.lineno}"
                    raise Unsure(
                        f"{what} is passed all of `{script.code(made)}`, and may not take {name} as well"
                    )

    def option(self, lines: list[str]) -> Edit:
        """Add these lines behind the last option that the parser is given where it is made, else before it parses."""
        script = self.script
        parsing = script.statement(self.parsing)
        home = script.parents[self._made]
        last = None
        for call in script.nodes(ast.Call):
            line = script.parents.get(call)
            if not isinstance(line, ast.Expr) or last_name(call.func) != "add_argument":
                continue
            ours = (
                last_name(getattr(call.func, "value", call.func)) == self.parser
                and script.parents[line] is home
            )
            if ours and (
                script.function(parsing) is not script.function(line)
                or script.precedes(line, parsing)
            ):
                last = line
        indent = self._indent(last or parsing)
        text = "".join(f"{indent}{line}{script.newline}" for line in lines)
        at = self._line_behind(last) if last is not None else script.line_start(parsing.lineno)
        return Edit(at, at, text)

    def behind_parsing(self, lines: list[str]) -> tuple[ast.stmt, Edit]:
        """Add lines behind the one statement by which the script gets its arguments; `{}` in them is their name."""
        script = self.script
        found = []
        for scope, name in self._names:
            for binder in script.lookup_in(name, scope):
                statement = script.statement(binder) if not isinstance(binder, ast.arg) else None
                if (
                    isinstance(statement, ast.Assign)
                    and script.function(statement) not in self._makers
                ):
                    found.append((statement, name))
        if len(found) != 1:
            raise Unsure(f"the script gets its arguments in {len(found)} places")
        statement, name = found[0]
        indent = self._indent(statement)
        text = "".join(f"{indent}{line.format(name)}{script.newline}" for line in lines)
        at = self._line_behind(statement)
        return statement, Edit(at, at, text)

    def name_at(self, node: ast.AST) -> str:
        """What the arguments are called at `node`.  Raises Unsure where no name surely has them by then."""
        script = self.script
        for scope, name in self._names:
            seen, binders = script.lookup(name, node)
            if seen is scope and self._in_time(scope, name, binders, node):
                return name
        raise Unsure(f"the parsed arguments are not certainly at hand in line {node.lineno}")

    def homes(self) -> list[ast.AST]:
        """The functions (or the module) in which a name is given the arguments."""
        script = self.script
        binders = [
            binder for scope, name in self._names for binder in script.lookup_in(name, scope)
        ]
        return [script.function(binder) for binder in binders if not isinstance(binder, ast.arg)]

    def _in_time(self, scope: ast.AST, name: str, binders: list[ast.AST], node: ast.AST) -> bool:
        script = self.script
        if any(isinstance(binder, ast.arg) for binder in binders):
            return True
        if all(script.precedes(binder, node) for binder in binders):
            return True
        function = script.function(node)
        if scope is not script.tree or not isinstance(function, FUNCTIONS):
            return False
        always = all(
            isinstance(script.parents[script.statement(binder)], ast.Module) for binder in binders
        )
        if always and all(place(binder) < place(function) for binder in binders):
            return True
        # Bound further down, under `if __name__ == ...` or by a function: surely there where this one uses it already.
        return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(function))

    def _learn(self) -> None:
        """One round: from what is known to be the arguments, find more names and functions that give them."""
        script = self.script
        for statement in script.nodes(ast.Assign):
            for target in statement.targets:
                if (
                    isinstance(target, ast.Tuple)
                    and last_name(self.parsing.func) == "parse_known_args"
                ):
                    target = target.elts[0] if statement.value is self.parsing else target
                if isinstance(target, ast.Name):
                    self._learn_name(target)
        for function in script.nodes(*FUNCTION_DEFS):
            returns = [r for r in script.nodes(ast.Return) if script.function(r) is function]
            if (
                function not in self._makers
                and returns
                and all(r.value and self._gives(r.value) for r in returns)
            ):
                self._makers.append(function)
            self._learn_parameters(function)

    def _learn_name(self, target: ast.Name) -> None:
        scope, binders = self.script.lookup(target.id, target)
        if (scope, target.id) in self._names:
            return
        values = [
            getattr(self.script.statement(b), "value", None)
            for b in binders
            if isinstance(b, ast.Name)
        ]
        if len(values) == len(binders) and all(v is not None and self._gives(v) for v in values):
            self._names.append((scope, target.id))

    def _learn_parameters(self, function) -> None:
        """A parameter is the arguments where every call of the function passes them, and nobody else has it."""
        script = self.script
        owner = script.scope(function)
        of_class = isinstance(
            owner, ast.ClassDef
        )  # whose call passes the parameters of __init__ behind self
        name = owner.name if of_class else function.name
        uses = [n for n in script.nodes(ast.Name) if n.id == name and isinstance(n.ctx, ast.Load)]
        calls = [script.parents[n] for n in uses]
        if not calls or not all(
            isinstance(c, ast.Call) and c.func is n for c, n in zip(calls, uses)
        ):
            return
        if (
            of_class and (function.name != "__init__" or owner.decorator_list)
        ) or function.decorator_list:
            return
        for index, parameter in enumerate(function.args.args[of_class:]):
            passed = [self._passed(call, index, parameter.arg) for call in calls]
            known = (function, parameter.arg)
            _, binders = script.lookup(parameter.arg, function.body[0])
            if (
                known not in self._names
                and len(binders) == 1
                and all(p is not None and self._gives(p) for p in passed)
            ):
                self._names.append(known)

    def _passed(self, call: ast.Call, index: int, name: str) -> ast.expr | None:
        by_name = keyword(call, name)
        starred = any(isinstance(arg, ast.Starred) for arg in call.args)
        return (
            by_name.value
            if by_name
            else call.args[index]
            if index < len(call.args) and not starred
            else None
        )

    def _gives(self, value: ast.expr) -> bool:
        """Whether an expression is the parsed arguments."""
        if value is self.parsing:
            return True
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return any(
                binder in self._makers
                for binder in self.script.lookup(value.func.id, value.func)[1]
            )
        return isinstance(value, ast.Name) and self.is_name(value)

    def is_name(self, node: ast.Name) -> bool:
        """Whether a name is certainly that of the parsed arguments."""
        return (self.script.lookup(node.id, node)[0], node.id) in self._names

    def _indent(self, statement: ast.stmt) -> str:
        start = self.script.line_start(statement.lineno)
        indent = self.script.text[start : self.script.span(statement)[0]]
        if indent.strip():
            raise Unsure(f"line {statement.lineno} holds more than one statement")
        return indent

    def _line_behind(self, statement: ast.stmt) -> int:
        end = self.script.line_start(statement.end_lineno + 1)
        rest = self.script.text[self.script.span(statement)[1] : end]
        if not rest.endswith("\n") or (rest.strip() and not rest.lstrip().startswith("#")):
            raise Unsure(f"line {statement.end_lineno} holds more than one statement")
        return end


def _all_of_an_object(node: ast.AST) -> bool:
    """`vars(args)`, `args.__dict__` or `args._get_kwargs()`, but not those of `self`."""
    if isinstance(node, ast.Call) and last_name(node.func) == "vars" and node.args:
        of = node.args[0]
    elif isinstance(node, ast.Attribute) and node.attr in ("__dict__", "_get_kwargs"):
        of = node.value
    else:
        return False
    return last_name(of) != "self"
