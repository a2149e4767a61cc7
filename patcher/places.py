"""Places in a script: where an import, an option, a function or a call is, and where another one goes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from patcher import syntax

Body = Sequence[cst.BaseStatement]


def inserted(body: Body, at: int, statement: cst.BaseStatement) -> Body:
    return [*body[:at], statement, *body[at:]]


def end_of_imports(body: Body) -> int:
    """Behind the imports that the script begins with; an `if` or a `try` between two of them belongs to them."""
    at = end = end_of_preamble(body)
    while at < len(body):
        if isinstance(body[at], cst.SimpleStatementLine):
            if not isinstance(body[at].body[0], (cst.Import, cst.ImportFrom)):
                break
            end = at + 1
        elif not isinstance(body[at], (cst.If, cst.Try)):
            break
        at += 1
    return end


def last_option(body: Body) -> int:
    return max(i for i, statement in enumerate(body) if adds_option(statement, None))


def parsing(body: Body) -> tuple[int, int] | None:
    """Which top-level function has the line `name = ...parse_args()`, and which of its lines that is."""
    for index, function in enumerate(body):
        lines = function.body.body if isinstance(function, cst.FunctionDef) else ()
        for line, statement in enumerate(lines):
            small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
            named = isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Name)
            if named and any(syntax.is_method_call(node, "parse_args") for node in syntax.descendants(small.value)):
                return index, line
    return None


def parse_args_call(value: cst.BaseExpression) -> cst.Call | None:
    """The call `parser.parse_args()` that a value is, or in `f(g(parser.parse_args()))` is made of."""
    while isinstance(value, cst.Call) and not syntax.is_method_call(value, "parse_args"):
        value = value.args[0].value if value.args else None
    return value if isinstance(value, cst.Call) else None


def parsed_into(body: Body, index: int, line: int) -> str:
    """The name in the line that `_parsing` has found."""
    return body[index].body.body[line].body[0].targets[0].target.value


def called(statement: cst.CSTNode) -> str | None:
    """The name of the function of which a line is a call, its result unused."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    call = small.value if isinstance(small, cst.Expr) else None
    return call.func.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Name) else None


def imports(module: cst.Module) -> list[tuple[str, str]]:
    """Every plain top-level import as code, with the name that it binds."""
    found = []
    for line in module.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            for alias in small.names if isinstance(small, cst.Import) else ():
                code = module.code_for_node(alias.with_changes(comma=cst.MaybeSentinel.DEFAULT))
                found.append((f"import {code}", alias.evaluated_alias or alias.evaluated_name.partition(".")[0]))
    return found


def training_names(function: cst.FunctionDef) -> dict[str, cst.BaseExpression]:
    """What a training loop calls its `model`, `optimizer`, `epoch`, `progress` and `losses`, as far as it has them."""
    found = {}
    for node in syntax.descendants(function):
        if syntax.is_method_call(node, "train"):
            found["model"] = node.func.value
        elif syntax.is_method_call(node, "step"):
            found["optimizer"] = node.func.value
        elif syntax.is_method_call(node, "format") and (syntax.string(node.func.value) or "").startswith("Epoch"):
            found["epoch"] = node.args[0].value
        elif isinstance(node, cst.Assign) and syntax.is_call(node.value, "ProgressMeter"):
            found["progress"] = node.targets[0].target
        elif isinstance(node, cst.Assign) and syntax.is_call(node.value, "AverageMeter"):
            name = "losses" if syntax.string(node.value.args[0].value) == "Loss" else "another"
            found[name] = node.targets[0].target
    return found


def innermost(node: cst.BaseExpression, *functions: str) -> cst.Call | None:
    """The call of one of `functions` in `f(g(...), ...)`, following first arguments."""
    while isinstance(node, cst.Call):
        if any(syntax.is_call(node, function) for function in functions):
            return node
        node = node.args[0].value if node.args else None
    return None


def added_functions(module: cst.Module, file: str) -> list[tuple[str, str]]:
    """What a file of `patches/added/` defines, and what it imports from others there: the name, and the file."""
    found = []
    for node in module.body:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            found.append((node.name.value, file))
        for small in node.body if isinstance(node, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.ImportFrom) and syntax.is_dotted(small.module.value, "patches.added"):
                found += [(alias.evaluated_name, f"{small.module.attr.value}.py") for alias in small.names]
    return found


def names_in(code: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])[^\W\d]\w*", code))


def place_of_import(body: Body, bound: str) -> int:
    """In the script's first block of plain imports, by name: before the first that comes later in the alphabet."""
    at = end_of_preamble(body)
    for index in range(at, len(body)):
        small = body[index].body[0] if isinstance(body[index], cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Import) or (index > at and body[index].leading_lines):
            return index if index > at else at
        if small.names[0].evaluated_name > bound:
            return index
    return len(body)


def end_of_preamble(body: Body) -> int:
    """Behind the docstring and the `__future__` imports: the first place where an import may stand."""
    at = 0
    for index, statement in enumerate(body):
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        future = isinstance(small, cst.ImportFrom) and syntax.is_name(small.module, "__future__")
        docstring = (
            index == 0
            and isinstance(small, cst.Expr)
            and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
        )
        if not (future or docstring):
            break
        at = index + 1
    return at


def adds_option(statement: cst.CSTNode, option: str | None) -> bool:
    call = syntax.expression(statement)
    return (
        syntax.adds_option(call, option) if option else call is not None and syntax.is_method_call(call, "add_argument")
    )
