"""`--local_rank` in anybody's script: its default comes from LOCAL_RANK, where torchrun puts it.

    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))

Without a launcher the default is what it was, so nothing else about the script changes.
`required=True`, which torchrun can never satisfy, goes; a process that nobody launched then has
local rank 0, because it is alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from patcher.rewrite.environment import environ_at
from patcher.rewrite.launched import VARIABLE, Launched
from patcher.rewrite.nodes import integer, is_constant, keyword, last_name, starred
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site, State, Unsure

NEEDLES = ((b"local_rank", b"local-rank"), (b"add_argument",))
SPELLINGS = ("--local_rank", "--local-rank")
SAME_MEANING = ("local_rank", "localrank", "localRank")
OF_ARGPARSE = {"action", "default", "type", "choices", "required", "help", "metavar", "dest"}


def sites(script: Script, both_spellings: bool = False) -> Iterator[Site]:
    """Every argparse option of one of the two spellings that means the local rank."""
    found = script.nodes(ast.Call, near=SPELLINGS)
    calls = [call for call in found if _spelled(call) and _adds(script, call)]
    missing = set(SPELLINGS) if both_spellings else set()
    for call in calls:
        missing -= {str(spelled.value) for spelled in _spelled(call)}
    for call in calls:
        try:
            name = _dest(call)
            if _means_another(name):
                continue
            site = _site(script, call, name)
        except Unsure as unsure:
            site = Site(State.HUMAN, call, str(unsure))
        for spelling in missing if site.state is not State.HUMAN else ():
            site = _with_spelling(script, call, site, spelling)
        yield site


def _site(script: Script, call: ast.Call, name: str) -> Site:
    if script.in_f_string(call):
        raise Unsure("it is in an f-string")
    names = {k.arg for k in call.keywords}
    if None in names or starred(call):
        raise Unsure("what the option is given is not all written here (* or **)")
    plain = keyword(call, "action") is None or is_constant(keyword(call, "action"), "store")
    if not plain or names & {"nargs", "const"}:
        raise Unsure("the option does not take one plain value (nargs, const or action)")
    if names - OF_ARGPARSE or not _argparse(script, call):
        raise Unsure(f"`{script.code(call.func)}` is not certainly that of an argparse parser")
    default, required = keyword(call, "default"), keyword(call, "required")
    needed = required is not None and not is_constant(required, False)
    launched = Launched(script, name, default)
    option = f"the option in line {call.lineno}"
    reading = launched.reading(default) if default is not None else None
    if reading is not None:
        if needed:
            raise Unsure("required, so the default that reads the environment is never used")
        return Site(State.ALREADY, reading, f"{option} takes its default from the environment")
    assignment = launched.assignment()
    if assignment is not None:
        return Site(State.ALREADY, assignment, f"{option} is given LOCAL_RANK")
    if any(keyword(setting, "local_rank") for setting in script.calls("set_defaults")):
        raise Unsure("`set_defaults` in this script gives local_rank another default")
    environ, imports_os = environ_at(script, call)
    value = _value(script, call, environ)
    edits = [script.replacing(default, value)] if default is not None else []
    if required is not None and needed:
        if not is_constant(required, True):
            why = "whether the default is used is not certain"
            raise Unsure(f"required={script.code(required)}: {why}")
        (argument,) = (k for k in call.keywords if k.value is required)
        new = f"default={value}" if default is None else "required=False"
        edits.append(script.replacing(argument, new))
    elif default is None:
        edits.append(_added(script, call, f"default={value}"))
    return Site(State.REWRITTEN, call, "takes its default from LOCAL_RANK", edits, imports_os)


def _value(script: Script, call: ast.Call, environ: str) -> str:
    """The new default: what argparse makes of the flag if LOCAL_RANK is set, else the old one.

    argparse applies `type` to a default that is a string, as to the flag itself.
    """
    old, kind = keyword(call, "default"), keyword(call, "type")
    code = script.code(old) if old is not None else "None"
    number = old is not None and integer(old) is not None
    is_int = isinstance(kind, ast.Name) and kind.id == "int"

    def get(old: str, as_int: bool) -> str:
        found = f'{environ}.get("{VARIABLE}", {old})'
        return f"int({found})" if as_int else found

    if is_constant(keyword(call, "required"), True):  # the old default was never used
        return get(code if number else "0", True) if is_int else get('"0"', False)
    if old is None or is_constant(old, None):
        if is_int:
            return f'int({environ}["{VARIABLE}"]) if "{VARIABLE}" in {environ} else {code}'
        return f'{environ}.get("{VARIABLE}")'
    if number:
        return get(code, is_int or kind is None)
    if not isinstance(old, ast.Constant) or not isinstance(old.value, str):
        raise Unsure(f"default={code}: what that is without a launcher is not written here")
    if is_int and not old.value.strip().lstrip("+-").isdecimal():
        raise Unsure(f"default={code} is not a number")
    return get(code, is_int)


def _added(script: Script, call: ast.Call, argument: str) -> Edit:
    """Pass `argument` too: on a line of its own if the last one has one.

    It goes before that one, unless a comment would change its neighbour.
    """
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    last = max(arguments, key=lambda node: script.span(node)[0])
    start, end = script.span(last)
    indent = script.text[script.line_start(last.lineno) : start]
    alone = not indent.strip() and isinstance(last, ast.keyword)
    if alone and not script.line(last.lineno - 1).lstrip().startswith("#"):
        return Edit(start, start, f"{argument},{script.newline}{indent}")
    return Edit(end, end, f", {argument}")


def _with_spelling(script: Script, call: ast.Call, site: Site, other: str) -> Site:
    """The site with the spelling that the script lacks as well."""
    spelled = _spelled(call)[0]
    quoted = script.code(spelled).replace(str(spelled.value), other)
    _, end = script.span(spelled)
    edit = Edit(end, end, f", {quoted if other in quoted else repr(other)}")
    why = f"{site.why}, and is spelled" if site.edits else "is spelled"
    return Site(State.REWRITTEN, call, f"{why} {other} too", [edit, *site.edits], site.imports_os)


def _adds(script: Script, call: ast.Call) -> bool:
    """`anything.add_argument(...)`, or a name for such a method."""
    method = script.value_of(call.func) or call.func
    return isinstance(method, ast.Attribute) and method.attr == "add_argument"


def _spelled(call: ast.Call) -> list[ast.Constant]:
    return [arg for arg in call.args if is_constant(arg, *SPELLINGS)]


def _dest(call: ast.Call) -> str:
    """What the value is called in the arguments.  Raises Unsure if that is not written here."""
    dest = keyword(call, "dest")
    if dest is not None:
        name = dest.value if isinstance(dest, ast.Constant) else None
    else:
        flags = [a.value for a in call.args if isinstance(a, ast.Constant)]
        name = next(f.lstrip("-") for f in flags if isinstance(f, str) and f.startswith("--"))
    if not isinstance(name, str):
        raise Unsure("what its value is called is not written here (dest)")
    return name.replace("-", "_")


def _means_another(name: str) -> bool:
    """Whether a value of this name means something else, as `rank`.  Raises Unsure if it may."""
    if name in SAME_MEANING:
        return False
    if "rank" in name:
        return True
    raise Unsure(f"its value is called {name}, which may mean something else")


def _argparse(script: Script, call: ast.Call) -> bool:
    """Whether the method is that of argparse, as far as the script shows.

    A parameter or an attribute may well be a parser.
    """
    method = script.value_of(call.func) or call.func
    on = method.value if isinstance(method, ast.Attribute) else method
    if isinstance(on, ast.Call):
        return _makes_parser(on)
    if not isinstance(on, ast.Name):
        return True
    binders = script.binders_of(on)
    calls = [made for b in binders if isinstance(made := script.value_given(b), ast.Call)]
    others = [made for made in calls if not _makes_parser(made)]
    parser = len(others) < len(calls) or any(isinstance(binder, ast.arg) for binder in binders)
    return not others or (parser and all(_hands_back(made, on.id) for made in others))


def _hands_back(call: ast.Call, name: str) -> bool:
    """Whether a function is given the parser of this name: what it returns is a parser again."""
    given = [*call.args, *(k.value for k in call.keywords)]
    return last_name(call.func)[:1].islower() and any(
        isinstance(value, ast.Name) and value.id == name for value in given
    )


def _makes_parser(call: ast.Call) -> bool:
    name = last_name(call.func).lower()
    return "parser" in name or name in ("add_argument_group", "add_mutually_exclusive_group")
