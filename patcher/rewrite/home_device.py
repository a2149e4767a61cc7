"""The device that DataParallel keeps the model on: what says which one that is, and how it follows a list."""

from __future__ import annotations

import ast
import re

from patcher.rewrite.arguments import Arguments
from patcher.rewrite.nodes import FUNCTIONS, integer, is_constant, keyword, last_name
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Unsure

TAKE_A_DEVICE = {
    "cuda",
    "set_device",
    "to",
    "device",
    "load",
    "DataParallel",
    "data_parallel",
    "load_state_dict",
}


def edits(script: Script, arguments: Arguments, home: int) -> list[Edit]:
    """What moves the home device from `home` to the first of `args.gpus`.  Raises Unsure where that is not certain."""
    found = []
    for node, index in _fixed(script):
        what = f"{script.code(node)} in line {node.lineno}"
        if index != home:
            raise Unsure(f"{what} names another device than the first of the list, {home}")
        if not _passed_on(script, node) or script.in_f_string(node):
            raise Unsure(f"{what} would not follow --gpus")
        new = f"{arguments.name_at(node)}.gpus[0]"
        text = f'"cuda:{{}}".format({new})' if isinstance(node.value, str) else new
        found.append(Edit(*script.span(node), text))
    current = _current(script)
    if current is None or _follows(script):
        return found
    if home != 0:
        raise Unsure(
            f"line {current.lineno} means the current device, GPU 0, and the list begins with {home}"
        )
    if any(last_name(call.func) in ("Process", "fork", "Pool") for call in script.nodes(ast.Call)):
        raise Unsure(
            f"line {current.lineno} means the current device, and this script starts processes"
        )
    lines = ["if torch.cuda.is_available():", "    torch.cuda.set_device({}.gpus[0])"]
    statement, edit = arguments.behind_parsing(lines)
    for node in script.nodes(ast.Constant, ast.keyword):
        names = "CUDA_VISIBLE_DEVICES" in (getattr(node, "value", None), getattr(node, "arg", None))
        if names and not script.precedes(
            node, statement
        ):  # to set it once a device has been used is too late
            raise Unsure(
                f"line {current.lineno} means the current device, and CUDA_VISIBLE_DEVICES is used after that"
            )
    if not _has_torch(script, statement):
        raise Unsure(f"`torch` is not certainly imported in line {statement.lineno}")
    return [*found, edit]


def _fixed(script: Script) -> list[tuple[ast.Constant, int]]:
    """Every literal that names one device by its number."""
    found = []
    for node in script.nodes(ast.Constant):
        match = re.fullmatch(r"cuda:(\d+)", node.value) if isinstance(node.value, str) else None
        if match:
            found.append((node, int(match[1])))
    for call in script.nodes(ast.Call):
        name = last_name(call.func)
        candidates = [k.value for k in call.keywords if k.arg == "output_device"]
        if name in ("cuda", "set_device", "to") or (name == "device" and len(call.args) == 1):
            candidates += call.args[:1] + [k.value for k in call.keywords if k.arg == "device"]
        elif name == "device" and len(call.args) == 2 and is_constant(call.args[0], "cuda"):
            candidates.append(call.args[1])
        elif name.endswith("DataParallel"):
            candidates += call.args[2:3]
        found += [
            (c, c.value)
            for c in candidates
            if integer(c) is not None and isinstance(c, ast.Constant)
        ]
    return found


def _passed_on(script: Script, node: ast.Constant) -> bool:
    """Whether a literal is given straight to what takes a device, or to a name: nothing compares or looks it up."""
    below, parent = node, script.parents[node]
    while isinstance(parent, ast.IfExp) and below is not parent.test:
        below, parent = parent, script.parents[parent]
    if isinstance(parent, ast.keyword):
        below, parent = parent, script.parents[parent]
    if isinstance(parent, ast.Assign):
        return all(isinstance(target, (ast.Name, ast.Attribute)) for target in parent.targets)
    return (
        isinstance(parent, ast.Call)
        and below is not parent.func
        and last_name(parent.func) in TAKE_A_DEVICE
    )


def _current(script: Script) -> ast.AST | None:
    """Something that means the current device, whichever that is."""
    for node in script.nodes(ast.Constant):
        if node.value == "cuda" and not _numbered(script.parents[node]):
            return node
    for call in script.nodes(ast.Call):
        bare = (
            isinstance(call.func, ast.Attribute) and not call.args and not keyword(call, "device")
        )
        if bare and call.func.attr == "cuda":
            return call
    return None


def _numbered(parent: ast.AST) -> bool:
    return (
        isinstance(parent, ast.Call)
        and last_name(parent.func) == "device"
        and len(parent.args) == 2
    )


def _follows(script: Script) -> bool:
    """Whether the script makes the first of a list the current device, or one that is edited with the rest."""
    calls = [call for call in script.nodes(ast.Call) if last_name(call.func) == "set_device"]
    for call in calls:
        given = call.args[0] if call.args else None
        first = any(isinstance(n, ast.Subscript) and integer(n.slice) == 0 for n in ast.walk(call))
        if not first and not isinstance(given, ast.Constant):
            raise Unsure(
                f"line {call.lineno} makes a device the current one that does not come from the list"
            )
    return bool(calls)


def _has_torch(script: Script, statement: ast.stmt) -> bool:
    _, binders = script.lookup("torch", statement)
    in_function = isinstance(script.function(statement), FUNCTIONS)
    imports = [
        b
        for b in binders
        if isinstance(b, ast.alias) and b.name.partition(".")[0] == "torch" and not b.asname
    ]
    return (
        len(imports) == len(binders) > 0
        and all(isinstance(script.parents[b], ast.Import) for b in imports)
        and any(isinstance(script.parents[script.parents[b]], ast.Module) for b in imports)
        and (in_function or any(script.precedes(b, statement) for b in imports))
    )
