"""The device that DataParallel keeps the model on: what names it, and how it follows a list."""

from __future__ import annotations

import ast
import re

from patcher.rewrite.arguments import Arguments
from patcher.rewrite.nodes import FUNCTIONS, integer, is_constant, keyword, last_name, receiver
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Unsure

VISIBLE = "CUDA_VISIBLE_DEVICES"
PLACE = {"cuda", "set_device", "to"}
TAKE_A_DEVICE = PLACE | {"device", "load", "DataParallel", "data_parallel", "load_state_dict"}
MAKE_CURRENT = ["if torch.cuda.is_available():", "    torch.cuda.set_device({}.gpus[0])"]


def edits(script: Script, arguments: Arguments, home: int) -> list[Edit]:
    """What moves the home device from `home` to `args.gpus[0]`.

    Raises Unsure if that is not certainly right.
    """
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
    means = f"line {current.lineno} means the current device"
    if home != 0:
        raise Unsure(f"{means}, GPU 0, and the list begins with {home}")
    if script.calls("Process", "fork", "Pool"):
        raise Unsure(f"{means}, and this script starts processes")
    statement, edit = arguments.after_parsing(MAKE_CURRENT)
    # To set the variable once a device has been used is too late.
    if not all(script.precedes(node, statement) for node in script.naming(VISIBLE)):
        raise Unsure(f"{means}, and {VISIBLE} is used after that")
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
        name, args = last_name(call.func), call.args
        given = [keyword(call, "output_device")]
        if name in PLACE or (name == "device" and len(args) == 1):
            given += [*args[:1], keyword(call, "device")]
        elif name == "device" and len(args) == 2 and is_constant(args[0], "cuda"):
            given.append(args[1])
        elif name.endswith("DataParallel"):
            given += args[2:3]
        literals = [node for node in given if isinstance(node, ast.Constant)]
        found += [(node, node.value) for node in literals if type(node.value) is int]
    return found


def _passed_on(script: Script, node: ast.Constant) -> bool:
    """Whether a literal is given straight to what takes a device, or to a name.

    Then nothing compares it or looks it up.
    """
    below: ast.AST = node
    parent = script.parents[node]
    while isinstance(parent, ast.keyword) or (
        isinstance(parent, ast.IfExp) and below is not parent.test
    ):
        below, parent = parent, script.parents[parent]
    if isinstance(parent, ast.Assign):
        return all(isinstance(target, (ast.Name, ast.Attribute)) for target in parent.targets)
    takes = isinstance(parent, ast.Call) and last_name(parent.func) in TAKE_A_DEVICE
    return takes and below is not parent.func


def _current(script: Script) -> ast.expr | None:
    """Something that means the current device, whichever that is."""
    for node in script.nodes(ast.Constant):
        call = script.parents[node]
        device = isinstance(call, ast.Call) and last_name(call.func) == "device"
        if node.value == "cuda" and not (device and len(call.args) == 2):
            return node
    for call in script.calls("cuda"):
        if receiver(call, "cuda") and not call.args and not keyword(call, "device"):
            return call
    return None


def _follows(script: Script) -> bool:
    """Whether the script makes the list's first device, or one that is edited, the current one."""
    calls = script.calls("set_device")
    for call in calls:
        first = any(isinstance(n, ast.Subscript) and integer(n.slice) == 0 for n in ast.walk(call))
        if not first and not (call.args and isinstance(call.args[0], ast.Constant)):
            makes = f"line {call.lineno} makes a device the current one"
            raise Unsure(f"{makes} that does not come from the list")
    return bool(calls)


def _has_torch(script: Script, statement: ast.stmt) -> bool:
    _, binders = script.lookup("torch", statement)
    imports = [script.parents[b] for b in binders if isinstance(b, ast.alias) and not b.asname]
    if not imports or len(imports) < len(binders):
        return False
    in_time = isinstance(script.function(statement), FUNCTIONS) or any(
        script.precedes(made, statement) for made in imports
    )
    at_the_top = any(isinstance(script.parents[made], ast.Module) for made in imports)
    return in_time and at_the_top and all(isinstance(made, ast.Import) for made in imports)
