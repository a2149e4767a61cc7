"""Places in a script: where an import, an option, a loop or a call is, and where statements go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

import libcst as cst

from patcher.tree import syntax

Body = Sequence[cst.BaseStatement]
# What a statement that makes an optimizer holds, see `optimized`: for the needles of a patch.
MAKES_OPTIMIZER = (b"torch.optim", b"optimizers.build")
Order = Callable[[cst.CSTNode], "tuple[int, str, int] | None"]


class Place(Enum):
    """Where a patch may put statements.

    The loop is that over the batches of the first parameter, or that over epochs.
    """

    PARSED = "below `args = parser.parse_args()`"
    OPTIMIZER = "below `optimizer = torch.optim...(model.parameters(), ...)`"
    LOADERS = "below its two loaders"
    BEFORE_LOOP = "before the loop"
    FIRST_IN_LOOP = "first in the loop"
    LAST_IN_LOOP = "last in the loop"
    AFTER_LOOP = "after the loop"
    SAVED = "below `save_checkpoint(...)`"


# Where statements go


def insert(function: cst.FunctionDef, place: Place, lines: Body, order: Order) -> cst.FunctionDef:
    """`function` with `lines` at `place`; itself if it has no such place.

    `order` gives the rank of a statement that stands there already, so that those that are put
    there later stand where they would have come first.
    """
    nodes = syntax.descendants(function)
    if place is Place.LAST_IN_LOOP and any(isinstance(node, cst.Continue) for node in nodes):
        return function
    last = next((line for line in reversed(lines_of(function)) if loader_in(line)), None)
    anchors: dict[Place, Callable[[cst.CSTNode], bool]] = {
        Place.PARSED: lambda line: parsed(line) is not None,
        Place.OPTIMIZER: lambda line: optimized(line) is not None,
        Place.LOADERS: lambda line: line is last,
        Place.SAVED: lambda line: syntax.is_call(syntax.expression(line), "save_checkpoint"),
    }
    blocks = (cst.With, cst.If, cst.Try, *((cst.For,) if place is Place.SAVED else ()))
    is_anchor = anchors.get(place) or is_loop(function)

    def edited(node: syntax.Node) -> syntax.Node:
        """The node with the first anchor below it edited, or the block around that."""
        block = getattr(node, "body", None)
        if not isinstance(block, cst.IndentedBlock):
            return node
        for at, line in enumerate(block.body):
            new = line
            if isinstance(line, blocks):
                new = edited(line)
            elif not is_anchor(line):
                continue
            elif place not in (Place.FIRST_IN_LOOP, Place.LAST_IN_LOOP):
                below = place is not Place.BEFORE_LOOP
                return node.with_changes(body=_joined(block, at + below, lines, order))
            elif isinstance(line, cst.For) and isinstance(line.body, cst.IndentedBlock):
                end = 0 if place is Place.FIRST_IN_LOOP else len(line.body.body)
                new = line.with_changes(body=_joined(line.body, end, lines, order))
            if new is not line:
                body = [*block.body[:at], new, *block.body[at + 1 :]]
                return node.with_changes(body=block.with_changes(body=body))
        return node

    return edited(function)


def _joined(block: cst.IndentedBlock, at: int, lines: Body, order: Order) -> cst.IndentedBlock:
    """The block with `lines` among the statements around `at` that have an order."""
    body, mine = list(block.body), order(lines[0])
    assert mine is not None
    while at > 0 and (there := order(body[at - 1])) and there > mine:
        at -= 1
    while at < len(body) and (there := order(body[at])) and there < mine:
        at += 1
    return block.with_changes(body=[*body[:at], *lines, *body[at:]])


def with_parameter(function: cst.FunctionDef, name: str) -> cst.FunctionDef:
    """The function with one more parameter before its last one, that of the parsed arguments."""
    *others, last = function.params.params
    params = [*others, cst.Param(cst.Name(name), comma=syntax.COMMA), last]
    return function.with_changes(params=function.params.with_changes(params=params))


def with_argument(call: cst.Call, name: str) -> cst.Call:
    """The call with one more argument, a variable, before its last one."""
    *others, last = call.args
    new = cst.Arg(cst.Name(name), comma=syntax.COMMA)
    if last.keyword:
        new = new.with_changes(keyword=cst.Name(name), equal=last.equal)
    return call.with_changes(args=[*others, new, last])


# What a function holds


def lines_of(function: cst.FunctionDef) -> Body:
    """Its own statements, but not those on the line of its `def`."""
    return function.body.body if isinstance(function.body, cst.IndentedBlock) else ()


def is_loop(function: cst.FunctionDef) -> Callable[[cst.CSTNode], bool]:
    """Whether a statement is the loop of this function, as `Place` has it."""
    first = function.params.params[0].name.value if function.params.params else ""

    def found(statement: cst.CSTNode) -> bool:
        if not isinstance(statement, cst.For):
            return False
        nodes = [*syntax.descendants(statement.iter)]
        batches = any(syntax.is_name(node, first) for node in nodes)
        return batches or (syntax.is_call(statement.iter, "range") and any(map(_is_epochs, nodes)))

    return found


def _is_epochs(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "epochs"


def loop_variable(function: cst.FunctionDef) -> str | None:
    """The variable of the loop of this function."""
    loop = next(filter(is_loop(function), syntax.descendants(function)), None)
    target = loop.target if isinstance(loop, cst.For) else None
    return target.value if isinstance(target, cst.Name) else None


def assigned(function: cst.FunctionDef, value: cst.CSTNode | None) -> str | None:
    """What this function calls what it assigns `value` to."""
    bound = filter(None, map(syntax.binding, syntax.descendants(function)))
    return next((name for name, one in bound if one is value), None)


def optimizer_in(function: cst.FunctionDef) -> tuple[str, str] | None:
    """What this function calls the model, and the optimizer that one of its own lines makes."""
    return next(filter(None, map(optimized, lines_of(function))), None)


def optimized(line: cst.CSTNode) -> tuple[str, str] | None:
    """The names in `optimizer = torch.optim.<any>(model.parameters(), ...)`: (model, optimizer).

    Or in `optimizer = optimizers.build(model, ...)`, which the patch `optimizer_choice` writes.
    """
    name, value = syntax.binding(line) or ("", None)
    if not isinstance(value, cst.Call) or not value.args:
        return None
    model: cst.CSTNode | None = value.args[0].value
    if syntax.is_dotted(syntax.receiver(value), "torch.optim"):
        model = syntax.receiver(model) if syntax.is_method_call(model, "parameters") else None
    elif not syntax.is_call(value, "optimizers.build"):
        return None
    return (model.value, name) if isinstance(model, cst.Name) else None


def training_names(function: cst.FunctionDef) -> dict[str, str]:
    """What a loop calls its `model`, `optimizer`, `epoch`, `step`, `progress` and `losses`."""
    found: dict[str, cst.CSTNode | None] = {}
    for node in syntax.descendants(function):
        if syntax.is_method_call(node, "train"):
            found["model"] = syntax.receiver(node)
        elif syntax.is_method_call(node, "step"):
            # A patch may have made it `precision.step(optimizer)`.
            found["optimizer"] = node.args[0].value if node.args else syntax.receiver(node)
        elif syntax.is_method_call(node, "format"):
            if (syntax.string(syntax.receiver(node)) or "").startswith("Epoch"):
                found["epoch"] = node.args[0].value
        elif isinstance(node, cst.Assign) and syntax.is_call(node.value, "ProgressMeter"):
            found["progress"] = node.targets[0].target
        elif isinstance(node, cst.Assign) and syntax.is_call(node.value, "AverageMeter"):
            name = "losses" if syntax.string(node.value.args[0].value) == "Loss" else "another"
            found[name] = node.targets[0].target
        elif isinstance(node, cst.For) and syntax.is_call(node.iter, "enumerate"):
            pair = node.target.elements if isinstance(node.target, cst.Tuple) else ()
            found["step"] = pair[0].value if pair else None
    return {name: node.value for name, node in found.items() if isinstance(node, cst.Name)}


def training_loader(function: cst.FunctionDef) -> cst.Call | None:
    """The `DataLoader(...)` whose name is handed to `train(...)`; if nothing is, the first one."""
    nodes = [*syntax.descendants(function)]
    handed = [node.args[0].value for node in nodes if syntax.is_call(node, "train") and node.args]
    values = _values(nodes, handed) if handed else nodes
    return next((call for call in values if syntax.is_call_of(call, "DataLoader")), None)


def training_images(function: cst.FunctionDef) -> cst.Call | None:
    """The `ImageFolder(...)` that is in the training loader, perhaps wrapped; else the first."""
    nodes, loader = [*syntax.descendants(function)], training_loader(function)
    given = loader.args[0].value if loader and loader.args else None
    images = _unwrapped(given, lambda value: syntax.is_call_of(value, "ImageFolder"))
    values = _values(nodes, [images]) if isinstance(images, cst.Name) else nodes
    return next((call for call in values if syntax.is_call_of(call, "ImageFolder")), None)


def loader_in(line: cst.CSTNode) -> str | None:
    """What a line calls the loader that it makes."""
    name, value = syntax.binding(line) or ("", None)
    return name if syntax.is_call_of(value, "DataLoader") else None


def loaders_in(function: cst.FunctionDef) -> tuple[str, str] | None:
    """What this function calls its two loaders: the one to train with, and the other one."""
    names = [name for name in map(loader_in, lines_of(function)) if name]
    training = assigned(function, training_loader(function))
    others = [name for name in names if name != training]
    return (training, others[0]) if training in names and len(others) == 1 else None


def _values(nodes: Iterable[cst.CSTNode], names: Sequence[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """What is assigned to one of these names."""
    for name, value in filter(None, map(syntax.binding, nodes)):
        if any(syntax.is_name(node, name) for node in names):
            yield value


def _unwrapped(
    value: cst.BaseExpression | None, is_it: Callable[[cst.BaseExpression], bool]
) -> cst.BaseExpression | None:
    """The call that `is_it` takes, in `f(g(call, ...), ...)`; else what is innermost."""
    while isinstance(value, cst.Call) and not is_it(value):
        value = value.args[0].value if value.args else None
    return value


# The parser, its options, and imports


def parse_args_call(value: cst.BaseExpression) -> cst.Call | None:
    """The call `parser.parse_args()` that a value is, or in `f(g(parser.parse_args()))` holds."""
    call = _unwrapped(value, lambda value: syntax.is_method_call(value, "parse_args"))
    return call if isinstance(call, cst.Call) else None


def parsed(line: cst.CSTNode) -> str | None:
    """The name in `name = ...parse_args()`."""
    name, value = syntax.binding(line) or ("", None)
    return name if value and parse_args_call(value) else None


def parsed_into(function: cst.FunctionDef) -> str | None:
    """What this function calls the arguments that one of its own lines parses."""
    return next(filter(None, map(parsed, lines_of(function))), None)


def parsed_name(body: Body) -> str | None:
    """What the script calls the parsed arguments, if it or a top-level function parses them."""
    names = (parsed_into(n) if isinstance(n, cst.FunctionDef) else parsed(n) for n in body)
    return next(filter(None, names), None)


def parser_name(module: cst.Module, text: Callable[[cst.CSTNode], str] | None = None) -> str | None:
    """What the script calls its argparse parser: that on which it calls `parse_args`."""
    for statement in module.body:
        if "parse_args" in (text or module.code_for_node)(statement):
            for node in syntax.descendants(statement):
                if syntax.is_method_call(node, "parse_args"):
                    parser = syntax.receiver(node)
                    if isinstance(parser, cst.Name):
                        return parser.value
    return None


def last_option(body: Body) -> int:
    """Where the last option is added; else where the last import is."""
    options = (syntax.is_method_call(syntax.expression(n), "add_argument") for n in body)
    return max(
        (at for at, is_one in enumerate(options) if is_one), default=end_of_imports(body) - 1
    )


def end_of_imports(body: Body) -> int:
    """Below the imports that the script begins with, and an `if` or `try` between them."""
    end = end_of_preamble(body)
    for at in range(end, len(body)):
        if isinstance(syntax.small(body[at]), (cst.Import, cst.ImportFrom)):
            end = at + 1
        elif not isinstance(body[at], (cst.If, cst.Try)):
            break
    return end


def place_of_import(body: Body, bound: str) -> int:
    """In the script's first block of plain imports: before the first with a name after `bound`."""
    start = end_of_preamble(body)
    for at in range(start, len(body)):
        small = syntax.small(body[at])
        if not isinstance(small, cst.Import) or (at > start and syntax.above(body[at])):
            return at
        if small.names[0].evaluated_name > bound:
            return at
    return len(body)


def end_of_preamble(body: Body) -> int:
    """Below the docstring and the `__future__` imports: where the first import may stand."""
    for at, line in enumerate(body):
        small = syntax.small(line)
        future = isinstance(small, cst.ImportFrom) and syntax.is_name(small.module, "__future__")
        text = (cst.SimpleString, cst.ConcatenatedString)
        docstring = at == 0 and isinstance(small, cst.Expr) and isinstance(small.value, text)
        if not (future or docstring):
            return at
    return len(body)
