"""`correct[:k].view(-1)` in anybody's script: `view` raises, the slice is not contiguous.

It was before torch 1.7.  `reshape` gives what `view` gives, or a copy if `view` would raise: so
wherever a site is one, the edit is right.  A site is a slice of a tensor about hits: its name says
so (correct, hit, match), or the script makes it by a comparison or by turning another tensor.

A slice is known to be contiguous, and left alone, by this rule: nothing but the first dimension is
sliced, and all that binds the tensor's name in its scope is a call of `.contiguous()` or of a
function that makes a new tensor (torch.zeros and the like); or the last binding is one, and surely
runs after all others and before the slice is taken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from patcher.rewrite.nodes import integer, last_name, place, receiver
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site, State

NEEDLES = ((b".view", b".reshape"),)
CASTS = ("float", "double", "half", "bfloat16", "int", "long", "to", "type")
SAME_LAYOUT = (*CASTS, "cpu", "cuda", "detach", "clone")
COMPARES = ("eq", "ne", "equal", "isin")
TURNS = ("t", "transpose", "permute", "T", "mT", "swapaxes")
RANDOM = ("rand", "randn", "randint")
MAKES = (*RANDOM, "zeros", "ones", "empty", "full", "arange", "linspace", "eye", "tensor")
FIXED = ("reshape", "flatten", "ravel")
BY_THIS = "the slice in line {} is contiguous by this"
ANY_ORDER = "flattens the slice in a way that takes any order in memory"


def sites(script: Script) -> Iterator[Site]:
    """Every slice of hits that is flattened."""
    for call in script.nodes(ast.Call, near=(".view", ".reshape")):
        if not isinstance(call.func, ast.Attribute) or call.keywords:
            continue
        method, base = call.func.attr, _below_layout(call.func.value)
        if method == "view" and _flattens(call):
            made = receiver(base, "contiguous")
            hits = _hits(script, base if made is None else _below_layout(made))
            if hits is not None:
                cause = _contiguous(script, hits) if made is None else call
                if cause is None:
                    yield _site(script, call)
                else:
                    yield Site(State.ALREADY, cause, BY_THIS.format(call.lineno))
            continue
        fixed = method in FIXED and (_flattens(call) or (method != "reshape" and not call.args))
        if fixed and _hits(script, base) is not None:
            yield Site(State.ALREADY, call, ANY_ORDER)


def _site(script: Script, call: ast.Call) -> Site:
    if script.in_f_string(call):
        return Site(State.HUMAN, call, "it is in an f-string: write reshape instead of view")
    _, end = script.span(call.func)
    edit = Edit(end - len("view"), end, "reshape")
    return Site(State.REWRITTEN, call, "flattens the slice with reshape", [edit])


def _flattens(call: ast.Call) -> bool:
    """`(-1)`, or the same in a tuple or list."""
    shape = call.args
    if len(shape) == 1 and isinstance(shape[0], (ast.Tuple, ast.List)):
        shape = shape[0].elts
    return len(shape) == 1 and integer(shape[0]) == -1


def _below_layout(node: ast.expr) -> ast.expr:
    """What stays of an expression without calls that leave the order in memory as it is."""
    while (inner := receiver(node, *SAME_LAYOUT)) is not None:
        node = inner
    return node


def _hits(script: Script, node: ast.expr) -> ast.Subscript | None:
    """The node, if it is a slice of a tensor about hits, and not the whole."""
    if not isinstance(node, ast.Subscript) or all(map(_is_whole, _parts(node))):
        return None
    tensor = node.value
    if any(word in last_name(tensor).lower() for word in ("correct", "hit", "match")):
        return node
    values = [tensor]
    if isinstance(tensor, ast.Name):
        given = map(script.value_given, script.binders_of(tensor))
        values = [value for value in given if value is not None]
    return node if any(map(_compares_or_turns, values)) else None


def _parts(subscript: ast.Subscript) -> list[ast.expr]:
    return subscript.slice.elts if isinstance(subscript.slice, ast.Tuple) else [subscript.slice]


def _is_whole(part: ast.expr) -> bool:
    """Whether a part of a subscript slices nothing off: `:`, or an index."""
    return not isinstance(part, ast.Slice) or not (part.lower or part.upper or part.step)


def _compares_or_turns(value: ast.expr) -> bool:
    """Whether the outermost steps of an expression compare element by element, or turn a tensor."""
    value = _below_layout(value)
    if isinstance(value, ast.Compare):
        return any(isinstance(op, (ast.Eq, ast.NotEq)) for op in value.ops)
    if isinstance(value, ast.Attribute):
        return value.attr in TURNS
    return isinstance(value, ast.Call) and last_name(value.func) in (*TURNS, *COMPARES)


def _contiguous(script: Script, subscript: ast.Subscript) -> ast.expr | None:
    """What makes a slice contiguous, by the rule in this module's docstring."""
    first, *rest = _parts(subscript)
    whole = all(isinstance(part, ast.Slice) and _is_whole(part) for part in rest)
    if not whole or (isinstance(first, ast.Slice) and first.step is not None):
        return None
    tensor = subscript.value
    if not isinstance(tensor, ast.Name):
        return tensor if _lies_in_order(tensor) else None
    binders = sorted(script.binders_of(tensor), key=place)
    values = [script.value_given(binder) for binder in binders]
    if not values or not _lies_in_order(values[-1]):
        return None
    *others, last = binders
    surely = script.precedes(last, subscript) and all(script.precedes(b, last) for b in others)
    return values[-1] if surely or all(map(_lies_in_order, values)) else None


def _lies_in_order(value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if receiver(value, "contiguous") is not None:
        return not value.args and not value.keywords
    of_torch = last_name(receiver(value, *MAKES)) == "torch"
    return of_torch and not any(k.arg in (None, "memory_format") for k in value.keywords)
