"""`--local_rank` in anybody's script: its default comes from LOCAL_RANK, where torchrun puts it.

    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))

Without a launcher the default is what it was, so nothing else about the script changes.  `required=True`,
which torchrun can never satisfy, goes; a process that nobody launched then has local rank 0, as it is alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from patcher.rewrite.environment import environ_at, imports_in_time
from patcher.rewrite.launched import VARIABLE, Launched
from patcher.rewrite.nodes import integer, is_constant, keyword, last_name
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site, State, Unsure

NEEDLES = ((b"local_rank", b"local-rank"), (b"add_argument",))
SPELLINGS = ("--local_rank", "--local-rank")
SAME_MEANING = ("local_rank", "localrank", "localRank")
OF_ARGPARSE = {
    "action",
    "nargs",
    "const",
    "default",
    "type",
    "choices",
    "required",
    "help",
    "metavar",
    "dest",
}


def sites(script: Script, both_spellings: bool = False) -> Iterator[Site]:
    """Every argparse option of one of the two spellings that means the local rank."""
    calls = [
        call
        for call in script.nodes(ast.Call, near=SPELLINGS)
        if _adds(script, call) and _spelled(call)
    ]
    missing = (
        set(SPELLINGS) - {s.value for call in calls for s in _spelled(call)}
        if both_spellings
        else set()
    )
    for call in calls:
        try:
            name = _dest(call)
            if _means_another(name):
                continue
            site = _site(script, call, name)
        except Unsure as unsure:
            site = Site(State.HUMAN, call, str(unsure))
        yield _with_spelling(script, call, site, missing)


def _site(script: Script, call: ast.Call, name: str) -> Site:
    if script.in_f_string(call):
        raise Unsure("it is in an f-string")
    if any(k.arg is None for k in call.keywords) or any(
        isinstance(a, ast.Starred) for a in call.args
    ):
        raise Unsure("what the option is given is not all written here (* or **)")
    strange = {k.arg for k in call.keywords} - OF_ARGPARSE
    if strange or not _argparse(script, call):
        raise Unsure(f"`{script.code(call.func)}` is not certainly that of an argparse parser")
    _plain_value(call)
    default, required = keyword(call, "default"), keyword(call, "required")
    launched = Launched(script, name, default and default.value)
    reading = launched.reading(default.value) if default is not None else None
    if reading is not None:
        if required is not None and not is_constant(required.value, False):
            raise Unsure("required, so the default that reads the environment is never used")
        return Site(
            State.ALREADY,
            reading,
            f"the option in line {call.lineno} takes its default from the environment",
        )
    assignment = launched.assignment()
    if assignment is not None:
        return Site(
            State.ALREADY, assignment, f"the option in line {call.lineno} is given LOCAL_RANK"
        )
    if _set_elsewhere(script):
        raise Unsure("`set_defaults` in this script gives local_rank another default")
    environ, imports_os = environ_at(script, call)
    if imports_os and not imports_in_time(script, call):
        raise Unsure("an `import os` would come after it")
    value = _value(script, call, environ)
    edits = []
    if required is not None and not is_constant(required.value, False):
        if not is_constant(required.value, True):
            raise Unsure(
                f"required={script.code(required.value)}: whether the default is used is not certain"
            )
        if default is None:
            edits.append(script.replacing(required, f"default={value}"))
        else:
            edits.append(script.replacing(required.value, "False"))
    elif default is None:
        edits.append(_added(script, call, f"default={value}"))
    if default is not None:
        edits.append(script.replacing(default.value, value))
    return Site(State.REWRITTEN, call, "takes its default from LOCAL_RANK", edits, imports_os)


def _value(script: Script, call: ast.Call, environ: str) -> str:
    """The new default: what argparse would make of the flag where LOCAL_RANK is set, the old one where it is not.

    argparse applies `type` to a default that is a string, as to the flag itself.
    """
    default, required, kind = (
        keyword(call, "default"),
        keyword(call, "required"),
        keyword(call, "type"),
    )
    is_int = kind is not None and isinstance(kind.value, ast.Name) and kind.value.id == "int"
    old = default.value if default is not None else ast.Constant(None)
    code = script.code(old) if default is not None else "None"
    text, number = f'{environ}.get("{VARIABLE}", {{}})', f'int({environ}.get("{VARIABLE}", {{}}))'
    if required is not None and is_constant(required.value, True):  # the old default was never used
        return (
            number.format(code if integer(old) is not None else 0) if is_int else text.format('"0"')
        )
    if is_constant(old, None):
        if is_int:
            return f'int({environ}["{VARIABLE}"]) if "{VARIABLE}" in {environ} else {code}'
        return f'{environ}.get("{VARIABLE}")'
    if integer(old) is not None:
        return (number if is_int or kind is None else text).format(code)
    if not isinstance(old, ast.Constant) or not isinstance(old.value, str):
        raise Unsure(f"default={code}: what that is without a launcher is not written here")
    if is_int and not old.value.strip().lstrip("+-").isdecimal():
        raise Unsure(f"default={code} is not a number")
    return (number if is_int else text).format(code)


def _added(script: Script, call: ast.Call, argument: str) -> Edit:
    """Pass `argument` too: on a line of its own where the last one has one, and no comment changes its neighbour."""
    last = max([*call.args, *call.keywords], key=lambda node: script.span(node)[0])
    start, end = script.span(last)
    before = script.line_start(last.lineno)
    indent = script.text[before:start]
    alone = not indent.strip() and isinstance(last, ast.keyword)
    if alone and not script.line(last.lineno - 1).lstrip().startswith("#"):
        return Edit(start, start, f"{argument},{script.newline}{indent}")
    return Edit(end, end, f", {argument}")


def _with_spelling(script: Script, call: ast.Call, site: Site, missing: set[str]) -> Site:
    """With the spelling that the script lacks as well, where it is asked for."""
    if not missing or site.state is State.HUMAN:
        return site
    (spelled,) = _spelled(call)[:1]
    _, end = script.span(spelled)
    code = script.code(spelled)
    (other,) = missing
    quoted = code.replace(spelled.value, other)
    quoted = quoted if other in quoted else repr(other)
    why = f"{site.why}, and is spelled {other} too" if site.edits else f"is spelled {other} too"
    return site._replace(
        state=State.REWRITTEN,
        node=call,
        why=why,
        edits=[Edit(end, end, f", {quoted}"), *site.edits],
    )


def _adds(script: Script, call: ast.Call) -> bool:
    """`anything.add_argument(...)`, or a name for such a method."""
    if isinstance(call.func, ast.Name):
        value = script.value_of(call.func) if _spelled(call) else None
        return isinstance(value, ast.Attribute) and value.attr == "add_argument"
    return isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"


def _spelled(call: ast.Call) -> list[ast.Constant]:
    return [arg for arg in call.args if is_constant(arg, *SPELLINGS)]


def _dest(call: ast.Call) -> str:
    """What the value is called in the parsed arguments.  Raises Unsure where that is not written here."""
    dest = keyword(call, "dest")
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    first = next((name for name in names if name.startswith("--")), "")
    name = (
        dest.value.value
        if dest and isinstance(dest.value, ast.Constant)
        else None
        if dest
        else first.lstrip("-")
    )
    if not isinstance(name, str):
        raise Unsure("what its value is called is not written here (dest)")
    return name.replace("-", "_")


def _means_another(name: str) -> bool:
    """Whether a value of this name has another meaning, as `rank` has; raises Unsure where it might have."""
    if name in SAME_MEANING:
        return False
    if "rank" in name:
        return True
    raise Unsure(f"its value is called {name}, which may mean something else")


def _argparse(script: Script, call: ast.Call) -> bool:
    """Whether the method is that of argparse, as far as the script shows; a parameter or an attribute may well be."""
    receiver = (
        call.func.value
        if isinstance(call.func, ast.Attribute)
        else script.value_of(call.func).value
    )
    if isinstance(receiver, ast.Call):
        return _makes_parser(receiver)
    if not isinstance(receiver, ast.Name):
        return True
    _, binders = script.lookup(receiver.id, receiver)
    statements = [script.parents[binder] for binder in binders]
    values = [
        s.value for s in statements if isinstance(s, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
    ]
    calls = [value for value in values if isinstance(value, ast.Call)]
    others = [call for call in calls if not _makes_parser(call)]
    parser = len(others) < len(calls) or any(isinstance(binder, ast.arg) for binder in binders)
    return not others or (parser and all(_hands_back(call, receiver.id) for call in others))


def _hands_back(call: ast.Call, name: str) -> bool:
    """Whether a function is given the parser of this name: what it returns, under the same name, is a parser again."""
    given = [*call.args, *(k.value for k in call.keywords)]
    return last_name(call.func)[:1].islower() and any(
        isinstance(g, ast.Name) and g.id == name for g in given
    )


def _makes_parser(call: ast.Call) -> bool:
    name = last_name(call.func).lower()
    return "parser" in name or name in ("add_argument_group", "add_mutually_exclusive_group")


def _plain_value(call: ast.Call) -> None:
    """Raise Unsure where the option does not take one plain value."""
    action = keyword(call, "action")
    if (
        keyword(call, "nargs")
        or keyword(call, "const")
        or (action and not is_constant(action.value, "store"))
    ):
        raise Unsure("the option does not take one plain value (nargs, const or action)")


def _set_elsewhere(script: Script) -> bool:
    return any(
        last_name(call.func) == "set_defaults" and keyword(call, "local_rank")
        for call in script.nodes(ast.Call, near=["set_defaults"])
    )
