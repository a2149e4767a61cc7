"""What upstream used and the patched script does not: it goes, and comes back when the patch is left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator

import libcst as cst

from patcher.tree import syntax

COUNTS = ("device_count",)  # calls without an effect

Dead = tuple[str, str, str]  # what kind of thing, in which function, and its name


def removed(
    pristine: cst.Module, module: cst.Module, code: Callable[[cst.Module], str]
) -> cst.Module:
    """`module` without the imports, functions, parameters and variables that `pristine` reads and it no longer does."""
    text = code(pristine)
    if not _lost(text, code(module)):
        return module
    before = ast.parse(text)
    for _ in range(10):  # what is removed may have been the last to use something
        dead = set(_dead(before, ast.parse(code(module))))
        if not dead:
            break
        module = _without(module, dead)
    return module


def _lost(before: str, after: str) -> bool:
    """Whether a word that something is bound to occurs less often: else to look closer is not worth its time."""
    words, left = (Counter(re.findall(r"\.?[^\W\d]\w*", text)) for text in (before, after))
    lost = map(re.escape, words - left)  # an attribute with its dot
    return any(
        re.search(rf"\b(import|as|def)\b[^:]*\b{word}\b|\b{word} = ", before) for word in lost
    )


def _dead(before: ast.Module, after: ast.Module) -> Iterator[Dead]:
    was, reads = _reads(before), _reads(after)

    def lost(name: str, own: Counter | None = None) -> bool:
        return was[name] > 0 and reads[name] - (own[name] if own else 0) == 0

    for node in after.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                if lost(bound) and "." not in (alias.name if not alias.asname else ""):
                    yield "import", "", bound
        elif isinstance(node, ast.FunctionDef) and node.name != "main" and not node.decorator_list:
            if lost(node.name, _reads(node)):
                yield "function", "", node.name
        elif _variable(node) and lost(_variable(node)) and _stores(after)[_variable(node)] == 1:
            yield "variable", "", _variable(node)
    functions = {node.name: node for node in before.body if isinstance(node, ast.FunctionDef)}
    positional = [n for n in ast.walk(after) if _is_positional(n)]
    for node in after.body:
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            calls = [call for call in positional if call.func.id == node.name]
            if (
                calls and len(calls) == reads[node.name] and not node.decorator_list
            ):  # else it is somebody's interface
                yield from _dead_parameters(functions[node.name], node, calls)
            yield from _dead_in(functions[node.name], node, was, reads)


def _dead_parameters(
    old: ast.FunctionDef, new: ast.FunctionDef, calls: list[ast.Call]
) -> Iterator[Dead]:
    before, after = _reads(old), _reads(new)
    for place, parameter in enumerate(new.args.args):
        given = [call.args[place] for call in calls if place < len(call.args)]
        if before[parameter.arg] > 0 and after[parameter.arg] == 0 and all(map(_is_plain, given)):
            yield "parameter", new.name, parameter.arg


def _dead_in(
    old: ast.FunctionDef, new: ast.FunctionDef, was: Counter, reads: Counter
) -> Iterator[Dead]:
    before, after = _reads(old), _reads(new)
    declared = {
        name for node in ast.walk(new) if isinstance(node, ast.Global) for name in node.names
    }
    for node in ast.walk(new):
        name = _variable(node)
        if name and name not in declared and before[name] > 0 and after[name] == 0:
            yield "variable", new.name, name
        target = (
            node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        )
        read = "." + getattr(target, "attr", "")
        if (
            isinstance(target, ast.Attribute)
            and _is_plain(node.value)
            and was[read] > 0 == reads[read]
        ):
            yield "attribute", new.name, target.attr
    for name in declared:
        if after[name] + _stores(new)[name] == 0 and before[name] > 0:
            yield "global", new.name, name


def _is_positional(node: ast.AST) -> bool:
    """`name(a, b)`."""
    plain = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords
    return plain and not any(isinstance(argument, ast.Starred) for argument in node.args)


def _reads(tree: ast.AST) -> Counter:
    """How often each name is read or deleted, and each attribute, with a dot before it."""
    found = Counter()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Store):
            found[node.id if isinstance(node, ast.Name) else "." + node.attr] += 1
        elif isinstance(node, ast.AugAssign):
            found[getattr(node.target, "id", "")] += 1
    return found


def _stores(tree: ast.AST) -> Counter:
    return Counter(
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )


def _variable(node: ast.AST) -> str | None:
    """The name in `name = value`, if to work out the value has no effect."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    return target.id if isinstance(target, ast.Name) and _is_plain(node.value) else None


def _is_plain(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return (
            isinstance(value.func, ast.Attribute) and value.func.attr in COUNTS and not value.args
        )
    return isinstance(value, (ast.Constant, ast.Name, ast.Attribute))


def _parsed(value: cst.BaseExpression) -> ast.expr:
    return ast.parse(f"({cst.Module([]).code_for_node(value)})", mode="eval").body


def _without(module: cst.Module, dead: set[Dead]) -> cst.Module:
    functions = {node.name.value: node for node in module.body if isinstance(node, cst.FunctionDef)}
    places = {
        name: [
            ("parameter", name, parameter.name.value) in dead for parameter in node.params.params
        ]
        for name, node in functions.items()
    }
    body: list[cst.CSTNode] = []
    for statement in module.body:
        alone = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1
        small = statement.body[0] if alone else None
        function = statement.name.value if isinstance(statement, cst.FunctionDef) else ""
        if ("function", "", function) in dead:
            body += _above(statement)
            continue
        if _is_dead(statement, "", dead):
            body += syntax.parts(statement, cst.RemovalSentinel.REMOVE)
            continue
        if isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(
            small.names, cst.ImportStar
        ):
            names = [alias for alias in small.names if ("import", "", _bound(alias)) not in dead]
            if not names:
                body += syntax.parts(statement, cst.RemovalSentinel.REMOVE)
                continue
            if len(names) < len(small.names):
                statement = statement.with_changes(
                    body=[small.with_changes(names=_ended(names, small.names))]
                )
        body.append(syntax.walk(statement, _Remover(function, dead, places)))
    body, left = syntax.spaced(body)
    return module.with_changes(body=body, footer=[*left, *module.footer])


def _above(function: cst.FunctionDef) -> list[cst.EmptyLine]:
    """The lines above a function that are not about it alone: those down to the last blank one."""
    lines = list(function.leading_lines)
    while lines and lines[-1].comment:
        lines.pop()
    return lines


def _bound(alias: cst.ImportAlias) -> str:
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]


def _is_dead(line: cst.CSTNode, function: str, dead: set[Dead]) -> bool:
    small = (
        line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    )
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        kind, name = (
            ("attribute", target.attr)
            if isinstance(target, cst.Attribute)
            else ("variable", target)
        )
        return (kind, function, getattr(name, "value", "")) in dead and _is_plain(
            _parsed(small.value)
        )
    if isinstance(small, cst.Global):
        return all(("global", function, item.name.value) in dead for item in small.names)
    return False


class _Remover:
    """Takes dead lines and parameters out of a top-level statement, and the arguments for them out of its calls."""

    def __init__(self, function: str, dead: set[Dead], places: dict[str, list[bool]]):
        self.function, self.dead, self.places = function, dead, places

    def on_visit(self, node: cst.CSTNode) -> bool:
        return True

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        if isinstance(updated, cst.IndentedBlock):
            block = syntax.without(updated, lambda line: _is_dead(line, self.function, self.dead))
            if block is updated or not block.body or block.body[0] is updated.body[0]:
                return block
            above = [line for line in block.body[0].leading_lines if line.comment]
            return block.with_changes(
                body=[block.body[0].with_changes(leading_lines=above), *block.body[1:]]
            )
        if isinstance(updated, cst.FunctionDef) and any(self.places.get(updated.name.value, ())):
            kept = self._kept(updated.params.params, self.places[updated.name.value])
            return updated.with_changes(params=updated.params.with_changes(params=kept))
        if isinstance(updated, cst.Call) and isinstance(updated.func, cst.Name):
            dead = self.places.get(updated.func.value, ())
            if any(dead):
                return updated.with_changes(args=self._kept(updated.args, dead))
        return updated

    @staticmethod
    def _kept(parts: list, dead: list[bool]) -> list:
        return _ended(
            [*(part for part, gone in zip(parts, dead) if not gone), *parts[len(dead) :]], parts
        )


def _ended(kept: list, before: list) -> list:
    """What is left of a list, the last part of it with the comma that the last one had."""
    return [*kept[:-1], kept[-1].with_changes(comma=before[-1].comma)] if kept else []
