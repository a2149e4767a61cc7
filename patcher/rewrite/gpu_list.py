"""A list of GPUs written into anybody's script: an option `--gpus` takes its place, and the list is its default.

    gpus = [0, 1]                                  parser.add_argument('--gpus', default=[0, 1], ...)
                                                   gpus = args.gpus

So without the option nothing changes.  With it, the home device moves too (the first of the list, where the model
and the outputs are): what says `cuda:0`, `.cuda(0)` or `output_device=0` then says `args.gpus[0]`, and for a bare
`.cuda()` that device is made the current one.  Where not all of that can be done with certainty, nothing is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from patcher.rewrite import home_device
from patcher.rewrite.arguments import Arguments
from patcher.rewrite.nodes import integer, is_constant, keyword, last_name, place
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site, State, Unsure

NEEDLES = (
    (b"torch", b"ataParallel", b"ata_parallel", b"cuda"),
    (
        b"gpu",
        b"GPU",
        b"Gpu",
        b"device",
        b"Device",
        b"DEVICE",
        b"cuda_",
        b"dev_id",
        b"ataParallel",
        b"ata_parallel",
    ),
)
NAMES = re.compile(
    r"_*(?:\w+_)?(?:gpus?|gpu_?ids?|gpu_?(?:id_?)?(?:list|lst|idx|indices|devices?)|device_?(?:ids?|list|idx|indices)|"
    r"devices|cuda_?(?:ids?|devices?)|dev_?ids?)_*",
    re.IGNORECASE,
)


def sites(script: Script) -> Iterator[Site]:
    """Every literal list of two or more GPUs that a name for it is given, or that DataParallel is."""
    lists = []
    for value, holder in _places(script):
        if _from_option(script, value):
            yield Site(State.ALREADY, value, "comes from the option --gpus")
        elif _ids(value) and not _feeds_visible_devices(script, holder):
            lists.append((value, holder))
    if not lists:
        return
    try:
        yield from list(
            _rewritten(script, sorted(lists, key=lambda found: place(found[0])))
        )  # all of them or none
    except Unsure as unsure:
        for value, _ in lists:
            yield Site(State.HUMAN, value, str(unsure))


def _rewritten(script: Script, lists: list[tuple[ast.expr, ast.AST]]) -> Iterator[Site]:
    if len({tuple(_ids(value)) for value, _ in lists}) > 1:
        lines = ", ".join(str(value.lineno) for value, _ in lists)
        raise Unsure(f"this script has different lists of GPUs in lines {lines}")
    for value, holder in lists:
        if isinstance(holder, ast.Call) and _distributed(script, holder):
            raise Unsure("DistributedDataParallel takes one device a process, not a list")
        if isinstance(script.scope(value), ast.ClassDef):
            raise Unsure(
                "the list belongs to a class, which is made before any arguments are parsed"
            )
        if script.in_f_string(value):
            raise Unsure("it is in an f-string")
    arguments = Arguments(script)
    arguments.refuse_option("gpus")
    arguments.refuse_handing_on("gpus")
    first = lists[0][0]
    edits = [arguments.option(_option(script, first, arguments))]
    edits += home_device.edits(script, arguments, _ids(first)[0])
    for number, (value, _) in enumerate(lists):
        args = f"{arguments.name_at(value)}.gpus"
        code = (
            f"tuple({args})" if isinstance(value, ast.Tuple) or _is_call(value, "tuple") else args
        )
        # Comments in the first list move with it, to the option.
        edit = script.replacing(value, code) if number else Edit(*script.span(value), code)
        why = "comes from an option --gpus, with this list as its default"
        yield Site(State.REWRITTEN, value, why, [edit] if number else [edit, *edits])


def _option(script: Script, value: ast.expr, arguments: Arguments) -> list[str]:
    """The lines of the option, for the parser of these arguments."""
    code = script.code(value)
    default = (
        repr(_ids(value))
        if "#" not in code
        else code
        if isinstance(value, ast.List)
        else f"list({code})"
    )
    head = f"{arguments.parser}.add_argument("
    gap = " " * len(head)
    return [
        f"{head}'--gpus', default={default}, metavar='IDS',",
        f"{gap}type=lambda ids: [int(i) for i in ids.split(',')],",
        f"{gap}help='GPUs to use, such as 0,1: the first one holds the model and gathers the outputs')",
    ]


def _places(script: Script) -> Iterator[tuple[ast.expr, ast.AST]]:
    """What a name for GPUs is given, or DataParallel for its `device_ids`: (value, name or call)."""
    passed = set()
    for call in script.nodes(ast.Call):
        value = _device_ids(script, call)
        if isinstance(value, ast.Name):
            passed |= {id(binder) for binder in script.lookup(value.id, value)[1]}
        elif value is not None:
            yield value, call
    for statement in script.nodes(ast.Assign, ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        target = targets[0] if len(targets) == 1 else None
        of_self = (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        )
        if statement.value is None or not (isinstance(target, ast.Name) or of_self):
            continue
        if id(target) in passed or NAMES.fullmatch(last_name(target)):
            yield statement.value, target


def _device_ids(script: Script, call: ast.Call) -> ast.expr | None:
    name = _called(script, call)
    given = keyword(call, "device_ids")
    if given is not None:
        return None if name == "dict" else given.value  # a configuration is not for us
    position = (
        2 if name == "data_parallel" else 1 if name.endswith("DataParallel") else len(call.args)
    )
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return None
    return call.args[position] if position < len(call.args) else None


def _called(script: Script, call: ast.Call) -> str:
    """The last name of what is called, under its own name where it was imported as another."""
    if isinstance(call.func, ast.Name):
        for binder in script.lookup(call.func.id, call.func)[1]:
            if isinstance(binder, ast.alias):
                return binder.name.rpartition(".")[2]
        value = script.value_of(call.func)
        if isinstance(value, ast.Attribute):
            return value.attr
    return last_name(call.func)


def _distributed(script: Script, call: ast.Call) -> bool:
    return "Distributed" in _called(script, call) or last_name(call.func) == "DDP"


def _ids(value: ast.expr) -> list[int]:
    """The ids of a literal list, tuple or range of two or more different ones; else nothing."""
    if isinstance(value, (ast.List, ast.Tuple)):
        ids = [integer(element) for element in value.elts]
    elif _is_call(value, "range"):
        bounds = [integer(arg) for arg in value.args]
        ids = (
            list(range(*bounds))
            if None not in bounds and 1 <= len(bounds) <= 2 and max(bounds) < 1024
            else []
        )
    elif (_is_call(value, "list") or _is_call(value, "tuple")) and len(value.args) == 1:
        return _ids(value.args[0])
    else:
        return []
    right = len(ids) > 1 and None not in ids and min(ids) >= 0 and len(set(ids)) == len(ids)
    return ids if right else []


def _is_call(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
        and not node.keywords
    )


def _from_option(script: Script, value: ast.expr) -> bool:
    """Whether a list comes from an option already: `args.gpus`, perhaps as a tuple."""
    if (_is_call(value, "tuple") or _is_call(value, "list")) and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, ast.Attribute) or value.attr != "gpus":
        return False
    return any(is_constant(arg, "--gpus") for call in script.nodes(ast.Call) for arg in call.args)


def _feeds_visible_devices(script: Script, holder: ast.AST) -> bool:
    """Whether CUDA_VISIBLE_DEVICES is made of this list: its ids are then those of the machine, not of the process."""
    if not isinstance(holder, (ast.Name, ast.Attribute)):
        return False
    names = {last_name(holder)}
    setting = [
        statement
        for constant in script.nodes(ast.Constant, ast.keyword)
        if "CUDA_VISIBLE_DEVICES"
        in (getattr(constant, "value", None), getattr(constant, "arg", None))
        for statement in [script.statement(constant)]
    ]
    if not setting:
        return False
    assignments = script.nodes(ast.Assign, ast.For)
    grown = True
    while grown:
        grown = False
        for statement in assignments:
            source = statement.value if isinstance(statement, ast.Assign) else statement.iter
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            made = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)} - names
            if made and any(last_name(node) in names for node in ast.walk(source)):
                names |= made
                grown = True
    return any(last_name(node) in names for statement in setting for node in ast.walk(statement))
