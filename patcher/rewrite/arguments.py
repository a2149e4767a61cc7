"""The argparse parser of a script: where an option goes, and what the arguments are called."""

from __future__ import annotations

import ast

from patcher.rewrite.nodes import FUNCTIONS, is_constant, keyword, last_name, place, receiver
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Unsure

PARSE = ("parse_args", "parse_known_args")
PARSERS = ("argumentparser", "argparser")
TAKE_ANY = ("dict", "format", "print", "Namespace", "SimpleNamespace")
FunctionDef = (ast.FunctionDef, ast.AsyncFunctionDef)


class Arguments:
    """The one parser of a script, and the names of what it parses.

    Raises Unsure if there is not exactly one.
    """

    def __init__(self, script: Script):
        self.script = script
        made = [c for c in script.nodes(ast.Call) if last_name(c.func).lower().endswith(PARSERS)]
        if not made:
            raise Unsure("there is no argparse parser in this script to add --gpus to")
        parsing = script.calls(*PARSE)
        if len(made) > 1 or len(parsing) != 1:
            raise Unsure(f"this script makes {len(made)} parsers and parses {len(parsing)} times")
        (self.parsing,) = parsing
        parser = receiver(self.parsing, *PARSE)
        if not isinstance(parser, ast.Name) or script.value_of(parser) is not made[0]:
            lines = f"line {made[0].lineno} has no certain name in line {self.parsing.lineno}"
            raise Unsure(f"the parser of {lines}")
        self.parser = parser.id  # where it parses
        self._made = script.statement(made[0])
        self._makers: list[ast.AST] = []  # functions that return the arguments
        self._names: list[tuple[ast.AST, str]] = []  # (scope, name) of what is certainly them
        known = -1
        while known < len(self._makers) + len(self._names):
            known = len(self._makers) + len(self._names)
            self._learn()

    def refuse_option(self, name: str) -> None:
        """Raise Unsure if the script has an option or an argument of this name."""
        for call in self.script.calls("add_argument"):
            option = any(is_constant(arg, f"--{name}", name) for arg in call.args)
            if option or is_constant(keyword(call, "dest"), name):
                raise Unsure(f"this script has --{name} already, in line {call.lineno}")
        for node in self.script.nodes(ast.Attribute):
            if node.attr == name and isinstance(node.value, ast.Name) and self.gives(node.value):
                used = f"{node.value.id}.{name} already, in line {node.lineno}"
                raise Unsure(f"this script uses {used}")

    def refuse_handing_on(self, name: str) -> None:
        """Raise Unsure if `f(**vars(args))` would pass this option to what may not take it."""
        script = self.script
        for call in script.nodes(ast.Call):
            if last_name(call.func) in TAKE_ANY:
                continue
            unpacked = [k.value for k in call.keywords if k.arg is None]
            unpacked += [a.value for a in call.args if isinstance(a, ast.Starred)]
            for value in unpacked:
                made = script.value_of(value) or value
                if any(map(_all_of_an_object, ast.walk(made))):
                    passed = f"is passed all of `{script.code(made)}`, and may not take {name}"
                    raise Unsure(f"`{script.code(call.func)}` in line {call.lineno} {passed}")

    def option(self, lines: list[str]) -> Edit:
        """Add these lines after the parser's last option, else before it parses."""
        script = self.script
        parsing = script.statement(self.parsing)
        home, function = script.parents[self._made], script.function(parsing)
        last = None
        for call in script.calls("add_argument"):
            line = script.parents[call]
            on = receiver(call, "add_argument")
            ours = last_name(on or call.func) == self.parser and script.parents[line] is home
            in_time = function is not script.function(line) or script.precedes(line, parsing)
            if isinstance(line, ast.Expr) and ours and in_time:
                last = line
        text = self._indented(last or parsing, lines)
        at = self._line_after(last) if last is not None else script.line_start(parsing.lineno)
        return Edit(at, at, text)

    def after_parsing(self, lines: list[str]) -> tuple[ast.stmt, Edit]:
        """Add lines after the one statement that gets the arguments; `{}` in them is their name.

        Raises Unsure if there is not exactly one.
        """
        script = self.script
        found = []
        for scope, name in self._names:
            for binder in script.lookup_in(name, scope):
                statement = script.statement(binder) if isinstance(binder, ast.Name) else None
                made = statement is not None and script.function(statement) in self._makers
                if isinstance(statement, ast.Assign) and not made:
                    found.append((statement, name))
        if len(found) != 1:
            raise Unsure(f"the script gets its arguments in {len(found)} places")
        statement, name = found[0]
        text = self._indented(statement, [line.format(name) for line in lines])
        at = self._line_after(statement)
        return statement, Edit(at, at, text)

    def name_at(self, node: ast.expr) -> str:
        """What the arguments are called at `node`.  Raises Unsure if that is not certain."""
        for scope, name in self._names:
            seen, binders = self.script.lookup(name, node)
            if seen is scope and self._in_time(scope, name, binders, node):
                return name
        raise Unsure(f"the parsed arguments are not certainly at hand in line {node.lineno}")

    def homes(self) -> list[ast.AST]:
        """The functions (or the module) in which a name is given the arguments."""
        script = self.script
        binders = [b for scope, name in self._names for b in script.lookup_in(name, scope)]
        return [script.function(b) for b in binders if not isinstance(b, ast.arg)]

    def gives(self, value: ast.expr) -> bool:
        """Whether an expression is certainly the parsed arguments."""
        if isinstance(value, ast.Name):
            return (self.script.lookup(value.id, value)[0], value.id) in self._names
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return any(binder in self._makers for binder in self.script.binders_of(value.func))
        return value is self.parsing

    def _in_time(self, scope: ast.AST, name: str, binders: list[ast.AST], node: ast.AST) -> bool:
        script = self.script
        if any(isinstance(binder, ast.arg) for binder in binders):
            return True
        if all(script.precedes(binder, node) for binder in binders):
            return True
        function = script.function(node)
        if scope is not script.tree or not isinstance(function, FUNCTIONS):
            return False
        parents = [script.parents[script.statement(binder)] for binder in binders]
        always = all(isinstance(parent, ast.Module) for parent in parents)
        if always and all(place(binder) < place(function) for binder in binders):
            return True
        # Bound further down, under `if __name__ == ...` or by a function: surely there if this
        # function uses it already.
        return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(function))

    def _learn(self) -> None:
        """Find more names of the arguments and functions that give them, from those known."""
        script = self.script
        known_args = last_name(self.parsing.func) == "parse_known_args"
        for statement in script.nodes(ast.Assign):
            targets = statement.targets
            if known_args and statement.value is self.parsing:
                targets = [t.elts[0] if isinstance(t, ast.Tuple) else t for t in targets]
            for target in targets:
                if isinstance(target, ast.Name):
                    self._learn_name(target)
        functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = script.nodes(*FunctionDef)
        for function in functions:
            values = [r.value for r in script.nodes(ast.Return) if script.function(r) is function]
            given = [value is not None and self.gives(value) for value in values]
            if function not in self._makers and given and all(given):
                self._makers.append(function)
            self._learn_parameters(function)

    def _learn_name(self, target: ast.Name) -> None:
        scope, binders = self.script.lookup(target.id, target)
        values = [
            getattr(self.script.statement(b), "value", None) if isinstance(b, ast.Name) else None
            for b in binders
        ]
        new = (scope, target.id) not in self._names
        if new and all(value is not None and self.gives(value) for value in values):
            self._names.append((scope, target.id))

    def _learn_parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A parameter is the arguments if every call of the function passes them, and only they."""
        script = self.script
        owner = script.scope(function)
        named: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef = function
        if isinstance(owner, ast.ClassDef):  # its call passes the parameters of __init__ after self
            if function.name != "__init__" or owner.decorator_list:
                return
            named = owner
        uses = [n for n in script.nodes(ast.Name) if n.id == named.name]
        uses = [n for n in uses if isinstance(n.ctx, ast.Load)]
        parents = [script.parents[n] for n in uses]
        calls = [c for c, n in zip(parents, uses) if isinstance(c, ast.Call) and c.func is n]
        if function.decorator_list or not calls or len(calls) < len(uses):
            return
        for index, parameter in enumerate(function.args.args[named is owner :]):
            passed = [_passed(call, index, parameter.arg) for call in calls]
            known = (function, parameter.arg)
            _, binders = script.lookup(parameter.arg, function.body[0])
            given = all(value is not None and self.gives(value) for value in passed)
            if known not in self._names and len(binders) == 1 and given:
                self._names.append(known)

    def _indented(self, statement: ast.stmt, lines: list[str]) -> str:
        """The text of these lines beside a statement, which has its first line for itself."""
        start = self.script.line_start(statement.lineno)
        indent = self.script.text[start : self.script.span(statement)[0]]
        if indent.strip():
            raise Unsure(f"line {statement.lineno} holds more than one statement")
        return "".join(f"{indent}{line}{self.script.newline}" for line in lines)

    def _line_after(self, statement: ast.stmt) -> int:
        end = self.script.line_start((statement.end_lineno or 0) + 1)
        rest = self.script.text[self.script.span(statement)[1] : end]
        if not rest.endswith("\n") or (rest.strip() and not rest.lstrip().startswith("#")):
            raise Unsure(f"line {statement.end_lineno} holds more than one statement")
        return end


def _passed(call: ast.Call, index: int, name: str) -> ast.expr | None:
    """What a call passes for the parameter of this name and place."""
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    by_place = call.args[index] if index < len(call.args) and not starred else None
    return keyword(call, name) or by_place


def _all_of_an_object(node: ast.AST) -> bool:
    """`vars(args)`, `args.__dict__` or `args._get_kwargs()`, but not those of `self`."""
    if isinstance(node, ast.Call) and last_name(node.func) == "vars" and node.args:
        return last_name(node.args[0]) != "self"
    if isinstance(node, ast.Attribute) and node.attr in ("__dict__", "_get_kwargs"):
        return last_name(node.value) != "self"
    return False
