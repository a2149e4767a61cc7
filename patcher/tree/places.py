"""Places in a script: where an import, an option, a loop or a call is, and where a statement goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import libcst as cst

from patcher.tree import syntax

Body = Sequence[cst.BaseStatement]


class Place(Enum):
    """Where a patch may put statements: the loop is that over the batches of the first parameter, or over epochs."""

    PARSED = "below `args = parser.parse_args()`"
    OPTIMIZER = "below `optimizer = torch.optim...(model.parameters(), ...)`"
    LOADERS = "below its two loaders"
    BEFORE_LOOP = "before the loop"
    FIRST_IN_LOOP = "first in the loop"
    LAST_IN_LOOP = "last in the loop"
    AFTER_LOOP = "after the loop"


def insert(
    function: cst.FunctionDef,
    place: Place,
    lines: Body,
    order: Callable[[cst.CSTNode], tuple | None],
) -> cst.FunctionDef:
    """`function` with `lines` at `place`; itself if it has no such place.

    `order` gives the rank of a statement that stands there already, so that those that are put
    there later stand where they would have come first.
    """
    if place is Place.LAST_IN_LOOP and any(
        isinstance(node, cst.Continue) for node in syntax.descendants(function)
    ):
        return function

    def edit(block: cst.IndentedBlock, at: int) -> cst.IndentedBlock:
        body = list(block.body)
        if place in (Place.FIRST_IN_LOOP, Place.LAST_IN_LOOP):
            inner = body[at].body
            start = 0 if place is Place.FIRST_IN_LOOP else len(inner.body)
            return block.with_changes(
                body=[
                    *body[:at],
                    body[at].with_changes(body=_sorted(inner, start, lines, order)),
                    *body[at + 1 :],
                ]
            )
        return _sorted(block, at if place is Place.BEFORE_LOOP else at + 1, lines, order)

    last = next((line for line in reversed(function.body.body) if loader_in(line)), None)
    anchors = {
        Place.PARSED: is_parsing,
        Place.OPTIMIZER: lambda line: optimized(line) is not None,
        Place.LOADERS: lambda line: line is last,
    }
    return _edited(function, anchors.get(place, is_loop(function)), edit)


def _sorted(block: cst.IndentedBlock, at: int, lines: Body, order: Callable) -> cst.IndentedBlock:
    """The block with `lines` among the statements around `at` that have an order."""
    body, mine = list(block.body), order(lines[0])
    while at > 0 and (there := order(body[at - 1])) and there > mine:
        at -= 1
    while at < len(body) and (there := order(body[at])) and there < mine:
        at += 1
    return block.with_changes(body=[*body[:at], *lines, *body[at:]])


def _edited(
    node: cst.CSTNode, anchor: Callable[[cst.CSTNode], bool], edit: Callable
) -> cst.CSTNode:
    """`node` with the innermost block below it that holds a statement for which `anchor` holds, edited."""
    block = node.body
    if not isinstance(block, cst.IndentedBlock):
        return node
    for index, statement in enumerate(block.body):
        if anchor(statement):
            return node.with_changes(body=edit(block, index))
        if isinstance(statement, (cst.With, cst.If, cst.Try)):
            inner = _edited(statement, anchor, edit)
            if inner is not statement:
                return node.with_changes(
                    body=block.with_changes(
                        body=[*block.body[:index], inner, *block.body[index + 1 :]]
                    )
                )
    return node


def is_loop(function: cst.FunctionDef) -> Callable[[cst.CSTNode], bool]:
    """Whether a statement is the loop of this function: over batches of its first parameter, or over epochs."""
    first = function.params.params[0].name.value if function.params.params else None

    def found(statement: cst.CSTNode) -> bool:
        if not isinstance(statement, cst.For):
            return False
        nodes = [*syntax.descendants(statement.iter)]
        batches = any(syntax.is_name(node, first) for node in nodes if first)
        return batches or (syntax.is_call(statement.iter, "range") and any(map(_is_epochs, nodes)))

    return found


def loop_variable(function: cst.FunctionDef) -> str | None:
    """The variable of the loop of this function."""
    loop = next(filter(is_loop(function), syntax.descendants(function)), None)
    return loop.target.value if loop and isinstance(loop.target, cst.Name) else None


def _is_epochs(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "epochs"


def is_parsing(statement: cst.CSTNode) -> bool:
    """`name = ...parse_args()`."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    named = isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Name)
    return named and parse_args_call(small.value) is not None


def parsed_into(function: cst.FunctionDef) -> str | None:
    """What this function calls the arguments that one of its own lines parses."""
    lines = function.body.body if isinstance(function.body, cst.IndentedBlock) else ()
    return next((line.body[0].targets[0].target.value for line in lines if is_parsing(line)), None)


def optimizer_in(function: cst.FunctionDef) -> tuple[str, str] | None:
    """What this function calls the model and the optimizer that one of its own lines makes for it."""
    lines = function.body.body if isinstance(function.body, cst.IndentedBlock) else ()
    return next((made for made in map(optimized, lines) if made), None)


def parse_args_call(value: cst.BaseExpression) -> cst.Call | None:
    """The call `parser.parse_args()` that a value is, or in `f(g(parser.parse_args()))` is made of."""
    while isinstance(value, cst.Call) and not syntax.is_method_call(value, "parse_args"):
        value = value.args[0].value if value.args else None
    return value if isinstance(value, cst.Call) else None


def parsed_name(body: Body) -> str | None:
    """What the script calls the parsed arguments, if it or a top-level function parses them."""
    for node in body:
        if is_parsing(node):
            return node.body[0].targets[0].target.value
        if isinstance(node, cst.FunctionDef) and (name := parsed_into(node)):
            return name
    return None


def parser_name(module: cst.Module, text: Callable | None = None) -> str | None:
    """What the script calls its argparse parser: that on which it calls `parse_args`."""
    for statement in module.body:
        if "parse_args" in (text or module.code_for_node)(statement):
            for node in syntax.descendants(statement):
                if syntax.is_method_call(node, "parse_args") and isinstance(
                    node.func.value, cst.Name
                ):
                    return node.func.value.value
    return None


def optimized(statement: cst.CSTNode) -> tuple[str, str] | None:
    """The names in `optimizer = torch.optim.<any>(model.parameters(), ...)`: (model, optimizer)."""
    if not syntax.assigns(statement, lambda value: isinstance(value, cst.Call)):
        return None
    target, value = statement.body[0].targets[0].target, statement.body[0].value
    made = isinstance(value.func, cst.Attribute) and syntax.is_dotted(
        value.func.value, "torch.optim"
    )
    parameters = value.args[0].value if value.args else None
    if (
        not made
        or not isinstance(target, cst.Name)
        or not syntax.is_method_call(parameters, "parameters")
    ):
        return None
    model = parameters.func.value
    return (model.value, target.value) if isinstance(model, cst.Name) else None


def training_names(function: cst.FunctionDef) -> dict[str, str]:
    """What a training loop calls its `model`, `optimizer`, `epoch`, `step`, `progress` and `losses`, if it has them."""
    found = {}
    for node in syntax.descendants(function):
        if syntax.is_method_call(node, "train"):
            found["model"] = node.func.value
        elif syntax.is_method_call(node, "step"):
            found["optimizer"] = node.func.value
        elif syntax.is_method_call(node, "format") and (
            syntax.string(node.func.value) or ""
        ).startswith("Epoch"):
            found["epoch"] = node.args[0].value
        elif isinstance(node, cst.Assign) and syntax.is_call(node.value, "ProgressMeter"):
            found["progress"] = node.targets[0].target
        elif isinstance(node, cst.Assign) and syntax.is_call(node.value, "AverageMeter"):
            name = "losses" if syntax.string(node.value.args[0].value) == "Loss" else "another"
            found[name] = node.targets[0].target
        elif isinstance(node, cst.For) and syntax.is_call(node.iter, "enumerate"):
            found["step"] = (
                node.target.elements[0].value if isinstance(node.target, cst.Tuple) else None
            )
    return {name: node.value for name, node in found.items() if isinstance(node, cst.Name)}


def training_loader(function: cst.FunctionDef) -> cst.Call | None:
    """The `DataLoader(...)` whose name is handed to `train(...)`; where nothing is, the first one."""
    nodes = [*syntax.descendants(function)]
    handed = [node.args[0].value for node in nodes if syntax.is_call(node, "train") and node.args]
    named = [node.value for node in nodes if isinstance(node, cst.Assign) and _is_of(node, handed)]
    return next(
        (call for call in (named if handed else nodes) if syntax.is_call_of(call, "DataLoader")),
        None,
    )


def loader_in(line: cst.CSTNode) -> str | None:
    """What a line calls the loader that it makes."""
    made = syntax.assigns(line, lambda value: syntax.is_call_of(value, "DataLoader"))
    return getattr(line.body[0].targets[0].target, "value", None) if made else None


def loaders_in(function: cst.FunctionDef) -> tuple[str, str] | None:
    """What this function calls the two loaders that it makes: the one to train with, and the other one."""
    names = [name for name in map(loader_in, function.body.body) if name]
    training = assigned(function, training_loader(function))
    others = [name for name in names if name != training]
    return (training, others[0]) if training in names and len(others) == 1 else None


def training_images(function: cst.FunctionDef) -> cst.Call | None:
    """The `ImageFolder(...)` that the training loader loads, perhaps wrapped; without such a loader, the first one."""
    nodes, loader = [*syntax.descendants(function)], training_loader(function)
    images = innermost(loader.args[0].value) if loader and loader.args else None
    if isinstance(images, cst.Name):
        nodes = [
            node.value for node in nodes if isinstance(node, cst.Assign) and _is_of(node, [images])
        ]
    return next((call for call in nodes if syntax.is_call_of(call, "ImageFolder")), None)


def assigned(function: cst.FunctionDef, value: cst.CSTNode | None) -> str | None:
    """What this function calls what it assigns `value` to."""
    assigns = (
        node
        for node in syntax.descendants(function)
        if isinstance(node, cst.Assign) and node.value is value
    )
    return next(
        (
            node.targets[0].target.value
            for node in assigns
            if isinstance(node.targets[0].target, cst.Name)
        ),
        None,
    )


def innermost(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The `x` of `f(g(x, ...), ...)`."""
    while isinstance(value, cst.Call) and not syntax.is_call_of(value, "ImageFolder"):
        value = value.args[0].value if value.args else None
    return value


def _is_of(line: cst.Assign, names: Sequence[cst.CSTNode]) -> bool:
    target = line.targets[0].target
    return isinstance(target, cst.Name) and any(
        syntax.is_name(name, target.value) for name in names
    )


def with_parameter(function: cst.FunctionDef, name: str) -> cst.FunctionDef:
    """The function with one more parameter, before its last one, which is that of the parsed arguments."""
    *others, last = function.params.params
    new = cst.Param(cst.Name(name), comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return function.with_changes(params=function.params.with_changes(params=[*others, new, last]))


def with_argument(call: cst.Call, name: str) -> cst.Call:
    """The call with one more argument, a variable, before its last one."""
    *others, last = call.args
    keyword = None if last.keyword is None else cst.Name(name)
    equal = last.equal if keyword else cst.MaybeSentinel.DEFAULT
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return call.with_changes(
        args=[*others, cst.Arg(cst.Name(name), keyword, equal=equal, comma=comma), last]
    )


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
    return max(
        (i for i, statement in enumerate(body) if adds_option(statement)),
        default=end_of_imports(body) - 1,
    )


def adds_option(statement: cst.CSTNode) -> bool:
    call = syntax.expression(statement)
    return call is not None and syntax.is_method_call(call, "add_argument")


def place_of_import(body: Body, bound: str) -> int:
    """In the script's first block of plain imports, by name: before the first that comes later in the alphabet."""
    at = end_of_preamble(body)
    for index in range(at, len(body)):
        small = body[index].body[0] if isinstance(body[index], cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Import) or (index > at and body[index].leading_lines):
            return max(at, index)
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
