"""`correct[:k].view(-1)` in anybody's script: the slice is not contiguous since torch 1.7, and `view` raises.

Where the slice may lie in memory in any order, `reshape` gives what `view` would have given, or a copy where `view`
would have raised: so wherever a site is one, the edit is right.  A site is a slice whose tensor is about
hits: its name says so (correct, hit, match), or the script makes it by a comparison or by turning another tensor.

A slice is known to be contiguous, and left alone, by this rule: nothing but the first dimension is sliced, and all
that binds the tensor's name in its scope is a call of `.contiguous()` or of a function that makes a new tensor
(torch.zeros and the like); or the last binding is one, and surely runs after all others and before the slice is taken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from patcher.rewrite.nodes import integer, last_name
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site, State

NEEDLES = ((b".view", b".reshape"),)
SAME_LAYOUT = {
    "float",
    "double",
    "half",
    "bfloat16",
    "int",
    "long",
    "to",
    "type",
    "cpu",
    "cuda",
    "detach",
    "clone",
}
TURNS = {"t", "transpose", "permute", "T", "mT", "swapaxes"}
COMPARES = {"eq", "ne", "equal", "isin"}
MAKES = {
    "zeros",
    "ones",
    "empty",
    "full",
    "rand",
    "randn",
    "randint",
    "arange",
    "linspace",
    "eye",
    "tensor",
}
FIXED = ("reshape", "flatten", "ravel")


def sites(script: Script) -> Iterator[Site]:
    """Every slice of hits that is flattened."""
    for call in script.nodes(ast.Call, near=(".view", ".reshape")):
        if not isinstance(call.func, ast.Attribute) or call.keywords:
            continue
        method, base = call.func.attr, _below_layout(call.func.value)
        if method == "view" and _flattens(call):
            contiguous = _is_call_of(base, "contiguous")
            base = _below_layout(base.func.value) if contiguous else base
            if not _takes_part(base) or not _about_hits(script, base.value):
                continue
            cause = call if contiguous else _contiguous(script, base)
            if cause is not None:
                yield Site(
                    State.ALREADY, cause, f"the slice in line {call.lineno} is contiguous by this"
                )
            else:
                yield _site(script, call)
            continue
        fixed = method in FIXED and (_flattens(call) or (method != "reshape" and not call.args))
        if fixed and _takes_part(base) and _about_hits(script, base.value):
            yield Site(
                State.ALREADY, call, "flattens the slice in a way that takes any order in memory"
            )


def _site(script: Script, call: ast.Call) -> Site:
    if script.in_f_string(call):
        return Site(State.HUMAN, call, "it is in an f-string: write reshape instead of view")
    _, end = script.span(call.func)
    return Site(
        State.REWRITTEN,
        call,
        "flattens the slice with reshape",
        [Edit(end - len("view"), end, "reshape")],
    )


def _flattens(call: ast.Call) -> bool:
    """`(-1)`, or the same in a tuple or list."""
    if len(call.args) != 1:
        return False
    only = call.args[0]
    if isinstance(only, (ast.Tuple, ast.List)) and len(only.elts) == 1:
        only = only.elts[0]
    return integer(only) == -1


def _below_layout(node: ast.expr) -> ast.expr:
    """What stays of an expression without calls that leave the order in memory as it is."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SAME_LAYOUT
    ):
        node = node.func.value
    return node


def _takes_part(node: ast.expr) -> bool:
    """A subscript with a slice that is not the whole."""
    return isinstance(node, ast.Subscript) and any(
        isinstance(p, ast.Slice) and (p.lower or p.upper or p.step) for p in _parts(node)
    )


def _parts(subscript: ast.Subscript) -> list[ast.expr]:
    return subscript.slice.elts if isinstance(subscript.slice, ast.Tuple) else [subscript.slice]


def _about_hits(script: Script, tensor: ast.expr) -> bool:
    name = last_name(tensor).lower()
    if any(word in name for word in ("correct", "hit", "match")):
        return True
    if isinstance(tensor, ast.Name):
        _, binders = script.lookup(tensor.id, tensor)
        values = (getattr(script.parents[binder], "value", None) for binder in binders)
        return any(isinstance(value, ast.expr) and _compares_or_turns(value) for value in values)
    return _compares_or_turns(tensor)


def _compares_or_turns(value: ast.expr) -> bool:
    """Whether the outermost steps of an expression compare tensors element by element, or turn one."""
    value = _below_layout(value)
    if isinstance(value, ast.Compare):
        return any(isinstance(op, (ast.Eq, ast.NotEq)) for op in value.ops)
    if isinstance(value, ast.Attribute):
        return value.attr in TURNS
    return isinstance(value, ast.Call) and last_name(value.func) in TURNS | COMPARES


def _contiguous(script: Script, subscript: ast.Subscript) -> ast.AST | None:
    """What makes a slice contiguous, by the rule in this module's docstring."""
    first, *rest = _parts(subscript)
    whole = all(isinstance(p, ast.Slice) and not (p.lower or p.upper or p.step) for p in rest)
    if not whole or (isinstance(first, ast.Slice) and first.step is not None):
        return None
    tensor = subscript.value
    if not isinstance(tensor, ast.Name):
        return tensor if _lies_in_order(tensor) else None
    _, binders = script.lookup(tensor.id, tensor)
    if not binders:
        return None
    values = [_assigned(script, binder) for binder in binders]
    last = max(binders, key=lambda node: script.span(node)[0] if hasattr(node, "lineno") else 0)
    always = all(value is not None and _lies_in_order(value) for value in values)
    surely = script.precedes(last, subscript) and all(
        b is last or script.precedes(b, last) for b in binders
    )
    value = _assigned(script, last)
    return value if always or (surely and value is not None and _lies_in_order(value)) else None


def _assigned(script: Script, binder: ast.AST) -> ast.expr | None:
    statement = script.parents.get(binder)
    return (
        statement.value
        if isinstance(statement, ast.Assign) and binder in statement.targets
        else None
    )


def _lies_in_order(value: ast.expr) -> bool:
    if _is_call_of(value, "contiguous"):
        return not value.args and not value.keywords
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Name)
        and value.func.value.id == "torch"
        and value.func.attr in MAKES
        and not any(k.arg in (None, "memory_format") for k in value.keywords)
    )


def _is_call_of(node: ast.AST, method: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
    )
