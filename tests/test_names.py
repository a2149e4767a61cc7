"""What a patch brings into a script never meets a name of the script's own: it is refused, or means
the right thing.
"""

import ast
import dis
import functools
import re
from collections import Counter
from types import CodeType

import pytest
from conftest import REPO

from patcher.build.project import Project, Request
from patcher.core import engine, single_pass, truth
from patcher.core.draft import Draft, Refused
from patcher.tree.names import MODULE, Names

# Names, by themselves

SCRIPT = """\
import os
import one.two as three
import four.five
from six import seven

eight = [nine for nine in range(3)]


def outer(arg, *, key=os):
    local = arg

    def inner():
        nonlocal local
        local = seven
        own = 1
        return own

    return inner, lambda item: item


class Kind:
    word = 1

    def method(self):
        global told
        told = self.attribute
        return str(keyword=1)
"""


@pytest.mark.parametrize(
    "name, function, scope",
    [
        ("os", "outer", MODULE),
        ("three", "outer", MODULE),
        ("one", "outer", None),
        ("four", "outer", MODULE),
        ("five", "outer", None),
        ("seven", "Kind.method", MODULE),
        ("nine", "outer", MODULE),  # Python 3.12 takes it for one of the module's
        ("range", "outer", MODULE),
        ("str", "outer", "Kind.method"),  # read there: it is Python's own
        ("told", "outer", MODULE),
        ("arg", "outer", "outer"),
        ("arg", "outer.inner", "outer"),
        ("arg", "Kind.method", None),
        ("key", "outer", "outer"),
        ("local", "outer.inner", "outer"),
        ("own", "outer.inner", "outer.inner"),
        ("own", "outer", None),
        ("item", "outer", "outer"),
        ("word", "Kind", "Kind"),
        ("word", "Kind.method", None),  # a method does not see it
        ("self", "Kind.method", "Kind.method"),
        ("attribute", "Kind.method", None),
        ("keyword", "Kind.method", None),
        ("method", "outer", None),
        ("new", "outer", None),
    ],
)
def test_global_clash_is_the_scope_in_which_a_name_means_something(name, function, scope):
    assert Names(SCRIPT).global_clash(name, function) == scope


@pytest.mark.parametrize(
    "name, function, scope",
    [
        ("local", "outer", "outer"),
        ("own", "outer", None),
        ("item", "outer", "outer"),
        ("seven", "outer", "outer.inner"),  # a variable of outer would be what inner reads
        ("seven", "Kind.method", None),
        ("os", "outer", None),  # a default belongs to the scope around the function
        ("told", "Kind.method", "Kind.method"),
        ("told", "outer", None),
        ("os", MODULE, MODULE),
        ("new", MODULE, None),
    ],
)
def test_local_clash_is_the_scope_that_knows_the_variable(name, function, scope):
    assert Names(SCRIPT).local_clash(name, function) == scope


@pytest.mark.parametrize(
    "name, scope, text",
    [
        ("three", MODULE, "import one.two as three"),
        ("four", MODULE, "import four.five"),
        ("seven", MODULE, "from six import seven"),
        ("key", "outer", "def outer(arg, *, key=os):"),
        ("local", "outer.inner", "nonlocal local"),
        ("told", MODULE, "global told"),
        ("str", "Kind.method", "return str(keyword=1)"),
    ],
)
def test_line_is_the_first_one_of_the_scope_with_the_name(name, scope, text):
    line = Names(SCRIPT).line(name, scope)
    assert SCRIPT.split("\n")[line - 1].strip() == text


def test_line_of_a_name_that_is_nowhere_is_0():
    assert (
        Names(SCRIPT).line("nowhere", MODULE) == Names(SCRIPT).line("keyword", "Kind.method") == 0
    )


@pytest.mark.parametrize(
    "script, line",
    [
        ("from a import *\nimport b\nx = 1\n", 0),
        ("'Doc.'\ntry:\n    from a import *\nexcept ImportError:\n    pass\nimport b\nx = 1\n", 0),
        ("import b\nx = 1\nfrom a import *\n", 3),
        ("import b\nif b:\n    from a import *\nx = 1\n", 3),
        ("import b\n", 0),
    ],
)
def test_star_import_below_the_first_imports_may_bind_anything(script, line):
    assert Names(script).late_star == line


def test_import_that_is_missing_is_refused_where_its_name_means_something_else():
    for script in (
        "os = 1\n",
        "def f(os): pass\n",
        "import os\ndef f(os): pass\n",
        "def f(): return os\n",
    ):
        bound = "os" if script.startswith("import") else None
        with pytest.raises(Refused) as caught:
            Draft(script.encode()).add_import("os", bound, "f")
        assert caught.value.why in ("the script has a os of its own", "f has a os of its own")
        assert "os" in script.split("\n")[caught.value.line - 1]
    for script in ("import os.path\n", "from os import path\n", "def g(os): pass\n"):
        draft = Draft(script.encode())
        draft.add_import("os", None, "f")
        assert draft.imports == {"os": "import os\n"}


# The property: for each name that a series brings and each way to bind it

PROJECT = Project(REPO)
SUPPORT = PROJECT.support()
CASES = [
    (series, file)
    for series in ("guide", "standard")
    for file in ("dataparallel.py", "distributed.py")
    if (series, file) != ("guide", "distributed.py")  # it brings nothing
]


@functools.cache
def patches(series: str) -> list:
    return PROJECT.patches_of(Request(series))


@functools.cache
def upstream(file: str) -> str:
    return (PROJECT.upstream / file).read_text()


def drafted(series: str, file: str, source: str) -> tuple[list, str]:
    """What `render` gives, but for what comes after the first patch that is not clean."""
    printer = single_pass.Printer()
    pristine = module = single_pass.parse(file, source.encode(), printer)
    outcomes, draft = [], Draft(source.encode(), SUPPORT)
    for patch in patches(series):
        if file in patch.sites:
            module, draft, outcome = truth.judge(file, pristine, module, patch, printer, draft)
            outcomes.append(outcome)
            if outcome.verdict is not truth.Verdict.CLEAN:
                break
    return outcomes, engine.finish(pristine, module, draft).code


@functools.cache
def brought(series: str, file: str) -> dict:
    """Every name that a series brings, with the requests that bring it."""
    requests = {}

    def recorded(name: str):
        real = getattr(Draft, name)

        def method(self, *args):
            names = [args[0]]
            if name == "use":
                names += ["support"]
            elif name == "inline":
                names = [
                    n.name
                    for n in ast.parse(SUPPORT[args[0]]).body
                    if getattr(n, "name", "add_options") != "add_options"
                ]
            for one in names:
                requests.setdefault((one, name == "bring"), {})[name, args] = None
            return real(self, *args)

        return method

    with pytest.MonkeyPatch.context() as patch:
        for name in ("use", "inline", "bring"):
            patch.setattr(Draft, name, recorded(name))
        outcomes, _ = drafted(series, file, upstream(file))
    assert {outcome.verdict for outcome in outcomes} == {truth.Verdict.CLEAN}
    return requests


def functions_of(name: str, requests: dict) -> list[str]:
    """The functions whose code uses a name that the series brings."""
    found = []
    for method, args in requests:
        if (method == "use" and args[0] == name) or method == "bring":
            found.append(args[1])
        elif method == "inline" and name == "select_gpus":  # gpu_ids is for that one
            found.append(args[3])
    return [function for function in dict.fromkeys(found) if function != MODULE]


def at_top(source: str, code: str) -> str:
    """With `code` below the imports and above all else."""
    assert source.count("\nmodel_names = ") == 1
    return source.replace("\nmodel_names = ", f"\n{code}\nmodel_names = ")


def at_end(source: str, code: str) -> str:
    """With `code` below all functions."""
    assert source.count("\nif __name__ == ") == 1
    return source.replace("\nif __name__ == ", f"\n{code}\n\nif __name__ == ")


def in_functions(source: str, code: str, functions: list[str]) -> str:
    """With `code` at the begin of each function."""
    for function in functions:
        head = re.search(
            rf"^( *)def {function.rpartition('.')[2]}\(.*\):\n", source, flags=re.MULTILINE
        )
        lines = "".join(f"{head[1]}    {line}\n" for line in code.rstrip("\n").split("\n"))
        source = source[: head.end()] + lines + source[head.end() :]
    return source


def with_parameter(source: str, name: str, functions: list[str]) -> str:
    """With one more parameter for each function."""
    for function in functions:
        head = re.search(
            rf"^ *def {function.rpartition('.')[2]}\((.*)\):\n", source, flags=re.MULTILINE
        )
        more = f", {name}=None" if "*" in head[1] else f", *, {name}=None"
        source = f"{source[: head.end(1)]}{more if head[1] else more[2:]}{source[head.end(1) :]}"
    return source


MODULE_WAYS = {  # they bind or read the name of the module
    "assignment": "{n} = 1\n",
    "annotation and value": "{n}: int = 1\n",
    "annotation": "{n}: int\n",
    "function": "def {n}(x):\n    return x\n",
    "class": "class {n}:\n    x = 1\n",
    "import": "import {n}\n",
    "import of a part": "import {n}.part\n",
    "import as": "import json as {n}\n",
    "from import": "from six import {n}\n",
    "from import as": "from os import path as {n}\n",
    "import or none": "try:\n    import {n}\nexcept ImportError:\n    {n} = None\n",
    "for": "for {n} in []:\n    pass\n",
    "with": "with open('f') as {n}:\n    pass\n",
    "except": "try:\n    pass\nexcept OSError as {n}:\n    pass\n",
    "walrus": "if ({n} := 1):\n    pass\n",
    "walrus in a comprehension": "[({n} := i) for i in []]\n",
    "star": "_, *{n} = [1, 2]\n",
    "match": "match 1:\n    case {{'x': {n}}}:\n        pass\n",
    "comprehension": "[{n} for {n} in []]\n",
    "use": "id({n})\n",
    "star import and a use": "from os.path import *\nid({n})\n",
    "global in a function": "def f_{n}():\n    global {n}\n    {n} = 1\n",
    "use in a function": "def f_{n}():\n    return {n}.x\n",
    "use in a lambda": "f_{n} = lambda x: {n}(x)\n",
    "use in a method": "class C_{n}:\n    def f(self):\n        return {n}\n",
    "use in a class": "class C_{n}:\n    x = {n}\n",
    "default": "def f_{n}(x={n}):\n    return x\n",
    "decorator": "@{n}\ndef f_{n}():\n    pass\n",
    "type of a parameter": "def f_{n}(x: {n}):\n    pass\n",
    "delete": "def f_{n}():\n    global {n}\n    del {n}\n",
}
FUNCTION_WAYS = {  # in the functions that use it, where they hide the name or make it another's
    "parameter": "",
    "assignment": "{n} = 1\n",
    "import": "import {n}\n",
    "import as": "import json as {n}\n",
    "for": "for {n} in []:\n    pass\n",
    "with": "with open('f') as {n}:\n    pass\n",
    "except": "try:\n    pass\nexcept OSError as {n}:\n    pass\n",
    "walrus": "if ({n} := 1):\n    pass\n",
    "comprehension": "[{n} for {n} in []]\n",
    "lambda": "f_{n} = lambda {n}: {n}\n",
    "function": "def {n}():\n    pass\n",
    "class": "class {n}:\n    pass\n",
    "global": "global {n}\n{n} = 1\n",
    "use": "id({n})\n",
    "use in a function": "def f_{n}():\n    return {n}\n",
    "use in a lambda": "f_{n} = lambda x: {n}\n",
    "nonlocal": "{n} = 1\ndef f_{n}():\n    nonlocal {n}\n    {n} = 2\n",
}
HARMLESS_WAYS = {  # anywhere
    "parameter": "def f_{n}({n}):\n    return {n}.x\n",
    "variable": "def f_{n}():\n    {n} = 1\n    return {n}\n",
    "variable and function in it": "def f_{n}():\n    {n} = 1\n    return lambda x: {n} + x\n",
    "comprehension": "def f_{n}():\n    return [{n} for {n} in []]\n",
    "class attribute": "class C_{n}:\n    {n} = 1\n    x = {n}\n",
    "method": "class C_{n}:\n    def {n}(self):\n        return self.{n}()\n",
    "attribute": "def f_{n}(args):\n    args.{n} = args.{n}.{n}\n",
    "keyword": "def f_{n}(x):\n    return x({n}=1)\n",
    "text": "def f_{n}():\n    return '{n}.x', f'{{1}} {n}'  # {n}\n",
    "from import of it": "from os import path as f_{n}\n",
    "import of a module below it": "def f_{n}(x):\n    import os.{n}\n",
}


NESTED_WAYS = {  # in the functions that use it, and harmless there
    "variable": "def f_{n}():\n    {n} = 1\n    return {n}\n",
    "parameter": "def f_{n}({n}):\n    return {n}\n",
    "class attribute": "class C_{n}:\n    {n} = 1\n",
}


def inject(kind: str, way: str, source: str, name: str, functions: list[str]) -> str:
    if way == "parameter" and kind == "function":
        return with_parameter(source, name, functions)
    code = WAYS[kind][way].format(n=name)
    if kind in ("function", "nested"):
        return in_functions(source, code, functions)
    return (at_top if kind == "module" else at_end)(source, code)


WAYS = {
    "module": MODULE_WAYS,
    "function": FUNCTION_WAYS,
    "nested": NESTED_WAYS,
    "harmless": HARMLESS_WAYS,
}
HARM = {
    "module": (True, False),
    "function": (True, True),
    "nested": (False, False),
    "harmless": (False, False),
}


def used(series: str, file: str, kind: str) -> dict:
    """The names that can be injected this way, with the functions that use them."""
    found = {key: functions_of(key[0], requests) for key, requests in brought(series, file).items()}
    return {
        key: functions
        for key, functions in found.items()
        if functions or kind in ("module", "harmless")
    }


GLOBAL = re.compile("(LOAD|STORE|DELETE)_GLOBAL")
LOCAL = re.compile("(LOAD|STORE|DELETE|LOAD_CLASS)_?(FAST|DEREF)|LOAD_CLOSURE")


def uses(source: str, name: str) -> Counter:
    """How often which function reads or binds a name of the module, and one of its own: as Python
    compiles it.
    """
    found = Counter()

    def visit(code: CodeType, scope: tuple[str, ...]) -> None:
        steps = [
            step
            for step in dis.get_instructions(code)
            if name in (step.argval, *_parts(step.argval))
        ]
        stores = any(step.opname == "STORE_NAME" for step in steps)
        for step in steps:
            if LOCAL.match(step.opname) or (step.opname.endswith("_NAME") and scope and stores):
                found[scope, "own"] += 1
            elif GLOBAL.match(step.opname) or step.opname in (
                "LOAD_NAME",
                "STORE_NAME",
                "DELETE_NAME",
            ):
                found[scope, step.opname.partition("_")[0]] += 1
        if name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            found[scope, "own"] += 1
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                visit(constant, (*scope, constant.co_name))

    visit(compile(source, "script", "exec"), ())
    return found


def _parts(value) -> tuple:
    return value if isinstance(value, tuple) else ()


def check_meaning(before: str, after: str, name: str, functions: list[str], is_local: bool) -> None:
    """Every use of `name` that the series brought means what it brought, and every other use what
    it meant before.
    """
    was, now = uses(before, name), uses(after, name)
    if is_local:
        scopes = [tuple(function.split(".")) for function in functions]
        for scope, kind in was:
            assert scope not in scopes, f"{name} was known in {scope}"
            assert kind == "own" or not any(scope[: len(s)] == s for s in scopes), (
                f"{scope} would not read its {name}"
            )
        new = {key: count for key, count in now.items() if key[0] in scopes}
        assert {key[0] for key in new} == set(scopes) and {kind for _, kind in new} == {"own"}
        assert {key: count for key, count in now.items() if key[0] not in scopes} == dict(was)
        return
    own = {key: count for key, count in was.items() if key[1] == "own"}
    assert own == dict(was), f"{name} of the module meant something"
    assert {key: count for key, count in now.items() if key[1] == "own"} == own
    brings = name != "support"
    assert (
        sum(count for (_, kind), count in now.items() if kind == "STORE")
        == now[(), "STORE"]
        == brings
    )
    assert not any(kind == "DELETE" for _, kind in now)
    assert not Names(after).late_star


def says(why: str, line: int, name: str, source: str) -> None:
    assert re.search(rf"\b{name}\b", why)
    assert line > 0 and re.search(rf"\b{name}\b", source.split("\n")[line - 1])


@pytest.mark.parametrize("kind, way", [(kind, way) for kind, ways in WAYS.items() for way in ways])
@pytest.mark.parametrize("series, file", CASES)
def test_name_is_refused_if_it_would_meet_one_of_the_scripts_own(series, file, kind, way):
    names = used(series, file, kind)
    alone = ("support", "gpu_ids", "select_gpus")  # for one of them, others are refused too
    groups = [{key: names[key]} for key in names if key[0] in alone]
    for group in [
        *groups,
        {key: functions for key, functions in names.items() if key[0] not in alone},
    ]:
        source = upstream(file)
        for (name, _), functions in group.items():
            source = inject(kind, way, source, name, functions)
        draft = Draft(source.encode(), SUPPORT)
        for name, is_local in group:
            refused = None
            try:
                for method, args in brought(series, file)[name, is_local]:
                    getattr(draft, method)(*args)
            except Refused as caught:
                refused = caught
            assert (refused is not None) == HARM[kind][is_local], (name, refused)
            if refused:
                says(refused.why, refused.line, name, source)


@pytest.mark.parametrize(
    "kind, way", [(kind, way) for kind in ("module", "function") for way in WAYS[kind]]
)
def test_engine_reports_the_name_and_its_line(kind, way):
    number = list(WAYS[kind]).index(way)
    series, file = CASES[number % len(CASES)]
    names = [
        (key, functions)
        for key, functions in used(series, file, kind).items()
        if HARM[kind][key[1]]
    ]
    (name, _), functions = names[7 * number % len(names)]
    source = inject(kind, way, upstream(file), name, functions)
    last = drafted(series, file, source)[0][-1]
    assert (last.verdict, last.refused) == (truth.Verdict.STALE, True)
    says(last.detail, last.line, name, source)


@pytest.mark.parametrize("kind", ["module", "nested", "harmless"])
@pytest.mark.parametrize("series, file", CASES)
def test_what_is_not_refused_means_the_right_thing_in_the_build(series, file, kind):
    names = {
        key: functions
        for key, functions in used(series, file, kind).items()
        if not HARM[kind][key[1]]
    }
    source = upstream(file)
    for way in [way for way, code in WAYS[kind].items() if "import *" not in code]:
        for (name, _), functions in names.items():
            source = inject(kind, way, source, name, functions)
    outcomes, after = drafted(series, file, source)
    assert [outcome for outcome in outcomes if outcome.verdict is not truth.Verdict.CLEAN] == []
    for (name, is_local), functions in names.items():
        check_meaning(source, after, name, functions, is_local)


@pytest.mark.parametrize("series, file", CASES)
def test_star_import_below_the_imports_is_refused_for_each_name_of_the_module(series, file):
    source = at_end(upstream(file), "from os.path import *\n")
    last = drafted(series, file, source)[0][-1]
    assert last.refused and last.detail.endswith("from `import *`")
    assert source.split("\n")[last.line - 1] == "from os.path import *"


@pytest.mark.parametrize("series, file", CASES)
def test_functions_of_upstreams_own_with_other_names_change_no_verdict(series, file):
    source, names = upstream(file), ("fail", "rank", "checkpoint_files", "error", "gpus_of")
    for name in names:
        source = at_top(source, f"def {name}(message):\n    return message\n")
    outcomes, after = drafted(series, file, source)
    assert {outcome.verdict for outcome in outcomes} == {truth.Verdict.CLEAN}
    assert [uses(after, name)[(), "STORE"] for name in names if name != "error"] == [1, 1, 1, 1]


@pytest.mark.parametrize("parser", ["p", "settings"])
def test_options_go_to_the_parser_whatever_it_is_called(parser):
    for series, file in CASES:
        source = re.sub(r"\bparser\b", parser, upstream(file))
        outcomes, after = drafted(series, file, source)
        assert {outcome.verdict for outcome in outcomes} == {truth.Verdict.CLEAN}
        assert {use for _, use in uses(after, "parser")} <= {
            "own"
        }  # also in what is copied from `support`


def test_parser_of_a_function_is_refused():
    source = upstream("dataparallel.py")
    start, end = source.index("parser = "), source.index("best_acc1 = 0\n")
    options = source[start:end]
    indented = "".join(f"    {line}\n" for line in options.rstrip("\n").split("\n"))
    source = source[:start] + source[end:].replace("def main():\n", f"def main():\n{indented}")
    last = drafted("guide", "dataparallel.py", source)[0][-1]
    assert last.refused and "outside its functions" in last.detail
