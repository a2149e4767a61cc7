"""A list of GPUs in anybody's script: `--gpus` takes its place, and the list is its default.

    gpus = [0, 1]                     parser.add_argument('--gpus', default=[0, 1], ...)
                                      gpus = args.gpus

So without the option nothing changes.  With it, the home device moves too (the first of the list,
where the model and the outputs are): `cuda:0`, `.cuda(0)` or `output_device=0` become
`args.gpus[0]`, and for a bare `.cuda()` that device is made the current one.  Unless all of that
is certainly right, nothing is done.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from patcher.rewrite import home_device
from patcher.rewrite.arguments import Arguments
from patcher.rewrite.nodes import integer, is_constant, keyword, last_name, place, starred
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site, State, Unsure

NEEDLES = (
    (b"torch", b"ataParallel", b"ata_parallel", b"cuda"),
    tuple(b"gpu GPU Gpu device Device DEVICE cuda_ dev_id ataParallel ata_parallel".split()),
)
NAMES = re.compile(
    r"_*(?:\w+_)?(?:gpus?|gpu_?ids?|gpu_?(?:id_?)?(?:list|lst|idx|indices|devices?)"
    r"|device_?(?:ids?|list|idx|indices)|devices|cuda_?(?:ids?|devices?)|dev_?ids?)_*",
    re.IGNORECASE,
)
Listed = tuple[ast.expr, ast.expr]  # a list, and the name that it is given or the call


def sites(script: Script) -> Iterator[Site]:
    """Every literal list of two or more GPUs, by its name or as DataParallel's `device_ids`."""
    lists = []
    for value, holder in _places(script):
        if _from_option(script, value):
            yield Site(State.ALREADY, value, "comes from the option --gpus")
        elif _ids(value) and not _feeds_visible_devices(script, holder):
            lists.append((value, holder))
    if not lists:
        return
    try:  # all of them or none
        yield from list(_rewritten(script, sorted(lists, key=lambda found: place(found[0]))))
    except Unsure as unsure:
        for value, _ in lists:
            yield Site(State.HUMAN, value, str(unsure))


def _rewritten(script: Script, lists: list[Listed]) -> Iterator[Site]:
    if len({tuple(_ids(value)) for value, _ in lists}) > 1:
        lines = ", ".join(str(value.lineno) for value, _ in lists)
        raise Unsure(f"this script has different lists of GPUs in lines {lines}")
    for value, holder in lists:
        if "Distributed" in _called(script, holder) or _function(holder) == "DDP":
            raise Unsure("DistributedDataParallel takes one device a process, not a list")
        if isinstance(script.scope(value), ast.ClassDef):
            raise Unsure("a class has the list, and is made before any arguments are parsed")
        if script.in_f_string(value):
            raise Unsure("it is in an f-string")
    arguments = Arguments(script)
    arguments.refuse_option("gpus")
    arguments.refuse_handing_on("gpus")
    first = lists[0][0]
    edits = [arguments.option(_option(script, first, arguments.parser))]
    edits += home_device.edits(script, arguments, _ids(first)[0])
    for value, _ in lists:
        args = f"{arguments.name_at(value)}.gpus"
        code = f"tuple({args})" if isinstance(value, ast.Tuple) or _calls(value, "tuple") else args
        # Comments in the first list move with it, to the option.
        edit = Edit(*script.span(value), code) if edits else script.replacing(value, code)
        why = "comes from an option --gpus, with this list as its default"
        yield Site(State.REWRITTEN, value, why, [edit, *edits])
        edits = []


def _option(script: Script, value: ast.expr, parser: str) -> list[str]:
    """The lines that add the option to the parser."""
    code = script.code(value)
    if "#" not in code:
        code = repr(_ids(value))
    elif not isinstance(value, ast.List):
        code = f"list({code})"
    gap = " " * len(f"{parser}.add_argument(")
    says = "GPUs to use, such as 0,1: the first one holds the model and gathers the outputs"
    return [
        f"{parser}.add_argument('--gpus', default={code}, metavar='IDS',",
        f"{gap}type=lambda ids: [int(i) for i in ids.split(',')],",
        f"{gap}help='{says}')",
    ]


def _places(script: Script) -> Iterator[Listed]:
    """What a name for GPUs is given, or DataParallel for its `device_ids`."""
    passed = set()
    for call in script.nodes(ast.Call):
        value = _device_ids(script, call)
        if isinstance(value, ast.Name):
            passed |= set(script.binders_of(value))
        elif value is not None:
            yield value, call
    statements: list[ast.Assign | ast.AnnAssign] = script.nodes(ast.Assign, ast.AnnAssign)
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        target = targets[0]
        owner = target.value if isinstance(target, ast.Attribute) else None
        ours = isinstance(target, ast.Name) or (isinstance(owner, ast.Name) and owner.id == "self")
        named = target in passed or NAMES.fullmatch(last_name(target))
        if len(targets) == 1 and statement.value and ours and named:
            yield statement.value, target


def _device_ids(script: Script, call: ast.Call) -> ast.expr | None:
    name = _called(script, call)
    given = keyword(call, "device_ids")
    if given is not None:
        return None if name == "dict" else given  # a configuration is not for us
    position = 1 if name.endswith("DataParallel") else 2
    if starred(call) or not (position == 1 or name == "data_parallel"):
        return None
    return call.args[position] if position < len(call.args) else None


def _function(node: ast.expr) -> str:
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def _called(script: Script, call: ast.expr) -> str:
    """The last name of what is called, its own if it was imported or named as another."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
        for binder in script.binders_of(call.func):
            if isinstance(binder, ast.alias):
                return binder.name.rpartition(".")[2]
        value = script.value_of(call.func)
        if isinstance(value, ast.Attribute):
            return value.attr
    return _function(call)


def _ids(value: ast.expr) -> list[int]:
    """The ids of a literal list, tuple or range of two or more different ones; else nothing."""
    if _calls(value, "list", "tuple") and len(value.args) == 1:
        return _ids(value.args[0])
    found: list[int | None] = []
    if isinstance(value, (ast.List, ast.Tuple)):
        found = [integer(element) for element in value.elts]
    elif _calls(value, "range"):
        bounds = [bound for arg in value.args if (bound := integer(arg)) is not None]
        if len(bounds) == len(value.args) in (1, 2) and max(bounds) < 1024:
            found = list(range(*bounds))
    ids = [i for i in found if i is not None and i >= 0]
    return ids if len(set(ids)) == len(found) > 1 else []


def _calls(node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
    """`name(...)` with no keywords, for any of the names."""
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    return isinstance(node.func, ast.Name) and node.func.id in names


def _from_option(script: Script, value: ast.expr) -> bool:
    """Whether a list comes from an option already: `args.gpus`, perhaps as a tuple."""
    if _calls(value, "list", "tuple") and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, ast.Attribute) or value.attr != "gpus":
        return False
    return any(is_constant(arg, "--gpus") for call in script.nodes(ast.Call) for arg in call.args)


def _feeds_visible_devices(script: Script, holder: ast.expr) -> bool:
    """Whether CUDA_VISIBLE_DEVICES is made of this list.

    Its ids are then those of the machine, not those of the process.
    """
    setting = [script.statement(node) for node in script.naming(home_device.VISIBLE)]
    if isinstance(holder, ast.Call) or not setting:
        return False
    names = {last_name(holder)}
    made_of: list[tuple[ast.expr, list[ast.expr]]] = [
        *((statement.value, statement.targets) for statement in script.nodes(ast.Assign)),
        *((loop.iter, [loop.target]) for loop in script.nodes(ast.For)),
    ]
    grown = True
    while grown:
        grown = False
        for source, targets in made_of:
            made = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)} - names
            if made and any(last_name(node) in names for node in ast.walk(source)):
                names |= made
                grown = True
    return any(last_name(node) in names for statement in setting for node in ast.walk(statement))
