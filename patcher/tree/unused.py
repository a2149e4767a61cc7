"""What upstream used and the patched script does not: it goes.

It comes back when the patch that made it useless is left out.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import libcst as cst

from patcher.tree import syntax

COUNTS = ("device_count",)  # calls without an effect
REMOVE = cst.RemovalSentinel.REMOVE

Part = TypeVar("Part", cst.Arg, cst.Param, cst.ImportAlias)
Dead = tuple[str, str, str]  # what kind of thing, in which function, and its name


def removed(
    pristine: cst.Module, module: cst.Module, code: Callable[[cst.Module], str]
) -> cst.Module:
    """`module` without what `pristine` reads and it no longer does.

    That is: imports, functions, their parameters, variables and attributes.
    """
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
    """Whether a word that something is bound to occurs less often: if not, spare the look."""
    words, left = (Counter(re.findall(r"\.?[^\W\d]\w*", text)) for text in (before, after))
    lost = map(re.escape, words - left)  # an attribute with its dot
    bound = r"\b(import|as|def)\b[^:]*\b{0}\b|\b{0} = "
    return any(re.search(bound.format(word), before) for word in lost)


# What is dead, by Python's own tree


def _dead(before: ast.Module, after: ast.Module) -> Iterator[Dead]:
    was, reads, stores = _reads(before), _reads(after), _stores(after)

    def lost(name: str, node: ast.AST | None = None) -> bool:
        own = _reads(node)[name] if node else 0
        return was[name] > 0 and reads[name] == own

    for node in after.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound = [alias.asname or alias.name for alias in node.names]
            yield from (("import", "", one) for one in bound if "." not in one and lost(one))
        elif isinstance(node, ast.FunctionDef):
            if node.name != "main" and not node.decorator_list and lost(node.name, node):
                yield "function", "", node.name
        elif (name := _variable(node)) and lost(name) and stores[name] == 1:
            yield "variable", "", name
    old = {node.name: node for node in before.body if isinstance(node, ast.FunctionDef)}
    calls = [call for node in ast.walk(after) if (call := _positional(node))]
    for node in after.body:
        if isinstance(node, ast.FunctionDef) and node.name in old:
            given = [args for name, args in calls if name == node.name]
            # With another use than these calls, or a decorator, it is somebody's interface.
            if given and len(given) == reads[node.name] and not node.decorator_list:
                yield from _dead_parameters(old[node.name], node, given)
            yield from _dead_in(old[node.name], node, was, reads)


def _dead_parameters(
    old: ast.FunctionDef, new: ast.FunctionDef, calls: list[list[ast.expr]]
) -> Iterator[Dead]:
    before, after = _reads(old), _reads(new)
    for at, parameter in enumerate(new.args.args):
        name, given = parameter.arg, [args[at] for args in calls if at < len(args)]
        if before[name] > 0 and after[name] == 0 and all(map(_is_plain, given)):
            yield "parameter", new.name, name


def _dead_in(
    old: ast.FunctionDef, new: ast.FunctionDef, was: Counter[str], reads: Counter[str]
) -> Iterator[Dead]:
    before, after, stores = _reads(old), _reads(new), _stores(new)
    nodes = [*ast.walk(new)]
    declared = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    for node in nodes:
        name, target = _variable(node), _target(node)
        if name and name not in declared and before[name] > 0 and after[name] == 0:
            yield "variable", new.name, name
        read = f".{target.attr}" if isinstance(target, ast.Attribute) else ""
        if was[read] > 0 and reads[read] == 0:
            yield "attribute", new.name, read[1:]
    for name in declared:
        if after[name] + stores[name] == 0 and before[name] > 0:
            yield "global", new.name, name


def _positional(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """The name and the arguments of a call `name(a, b)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        return None
    is_open = any(isinstance(argument, ast.Starred) for argument in node.args)
    return None if is_open else (node.func.id, node.args)


def _reads(tree: ast.AST) -> Counter[str]:
    """How often each name is read or deleted, and each attribute, with a dot before it."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Store):
            found[node.id if isinstance(node, ast.Name) else "." + node.attr] += 1
        elif isinstance(node, ast.AugAssign):
            found[getattr(node.target, "id", "")] += 1
    return found


def _stores(tree: ast.AST) -> Counter[str]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return Counter(node.id for node in names if isinstance(node.ctx, ast.Store))


def _target(node: ast.AST) -> ast.expr | None:
    """The `x` in `x = value`, if to work out the value has no effect."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_plain(node.value):
        return node.targets[0]
    return None


def _variable(node: ast.AST) -> str | None:
    target = _target(node)
    return target.id if isinstance(target, ast.Name) else None


def _is_plain(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return getattr(value.func, "attr", "") in COUNTS and not value.args
    return isinstance(value, (ast.Constant, ast.Name, ast.Attribute))


# The script without it, by LibCST's tree


def _without(module: cst.Module, dead: set[Dead]) -> cst.Module:
    gone: dict[str, set[int]] = {}  # the numbers of parameters, by function
    for node in module.body:
        if isinstance(node, cst.FunctionDef):
            keys = [("parameter", node.name.value, p.name.value) for p in node.params.params]
            gone[node.name.value] = {at for at, key in enumerate(keys) if key in dead}
    left = (part for statement in module.body for part in _left_of(statement, dead, gone))
    body, comments = syntax.spaced(left)
    return module.with_changes(body=body, footer=[*comments, *module.footer])


def _left_of(
    statement: cst.CSTNode, dead: set[Dead], gone: dict[str, set[int]]
) -> Sequence[cst.CSTNode]:
    """What is left of a top-level statement."""
    function = statement.name.value if isinstance(statement, cst.FunctionDef) else ""
    if ("function", "", function) in dead:
        lines = [*syntax.above(statement)]
        while lines and lines[-1].comment:  # what stands right above it is about it alone
            lines.pop()
        return lines
    if _is_dead(statement, "", dead):
        return syntax.parts(statement, REMOVE)
    small = syntax.only(statement)
    if isinstance(small, (cst.Import, cst.ImportFrom)) and isinstance(small.names, Sequence):
        keys = [("import", "", _bound(alias)) for alias in small.names]
        names = _kept(small.names, {at for at, key in enumerate(keys) if key in dead})
        if not names:
            return syntax.parts(statement, REMOVE)
        if len(names) < len(keys):
            return [statement.with_changes(body=[small.with_changes(names=names)])]

    def leave(original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        if isinstance(updated, cst.IndentedBlock):
            return syntax.without(updated, lambda line: _is_dead(line, function, dead))
        if isinstance(updated, cst.FunctionDef) and gone.get(updated.name.value):
            params = _kept(updated.params.params, gone[updated.name.value])
            return updated.with_changes(params=updated.params.with_changes(params=params))
        if isinstance(updated, cst.Call):
            name = updated.func.value if isinstance(updated.func, cst.Name) else ""
            args = _kept(updated.args, gone.get(name, set()))
            return updated.with_changes(args=args) if len(args) < len(updated.args) else updated
        return updated

    return [syntax.rewritten(statement, leave)]


def _is_dead(line: cst.CSTNode, function: str, dead: set[Dead]) -> bool:
    small = syntax.only(line)
    if isinstance(small, cst.Global):
        return all(("global", function, item.name.value) in dead for item in small.names)
    if not isinstance(small, cst.Assign) or len(small.targets) > 1:
        return False
    target, kind = small.targets[0].target, "variable"
    if isinstance(target, cst.Attribute):
        target, kind = target.attr, "attribute"
    if not isinstance(target, cst.Name) or (kind, function, target.value) not in dead:
        return False
    (assign,) = ast.parse(cst.Module([]).code_for_node(small)).body
    return _target(assign) is not None


def _bound(alias: cst.ImportAlias) -> str:
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]


def _kept(parts: Sequence[Part], gone: set[int]) -> list[Part]:
    """The parts whose numbers are not in `gone`, and the comma at the end as it was."""
    kept = [part for at, part in enumerate(parts) if at not in gone]
    if kept:
        kept[-1] = kept[-1].with_changes(comma=parts[-1].comma)
    return kept
