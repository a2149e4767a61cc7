"""Positions and names in scripts that are not ours; and that edits by position are what LibCST
would make of them.
"""

import ast
import io
import sysconfig
import tokenize
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rendering import make, once

from patcher.core.problem import Problem
from patcher.rewrite.rewrite import PATCHES, rewrite
from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, State, apply

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
SAMPLE = sorted(path for path in LIBRARY.glob("*.py") if path.stat().st_size < 40_000)[::4]


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name)
def test_every_name_stands_where_the_script_says(path):
    script = Script(path.name, path.read_bytes())
    names = [node for node in script.nodes(ast.Name) if not script.in_f_string(node)]
    assert [script.code(node) for node in names] == [node.id for node in names]
    attributes = [node for node in script.nodes(ast.Attribute) if not script.in_f_string(node)]
    assert all(script.code(node).endswith(node.attr) for node in attributes)


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name)
def test_code_that_has_none_of_the_faults_is_not_touched(path):
    source = path.read_bytes()
    done = rewrite(
        path.name, source + b"\n# torch gpu local_rank add_argument .view\n", list(PATCHES)
    )
    assert done.problem is None
    assert done.after == done.before
    assert done.findings == () or not [f for f in done.findings if f.state is State.REWRITTEN]


@given(
    st.lists(st.sampled_from("aä€😀 b'"), max_size=12).map("".join), st.sampled_from(["\n", "\r\n"])
)
def test_names_stand_right_behind_any_characters(text, newline):
    text = text.replace("'", "")
    source = f"x = '''{text}{newline}{text}'''; name = '{text}'; name{newline}".encode()
    script = Script("x.py", source)
    assert {script.code(node) for node in script.nodes(ast.Name)} == {"x", "name"}
    assert {
        script.text[script.span(node)[0] :][: len(node.id)] for node in script.nodes(ast.Name)
    } == {"x", "name"}


def test_edits_at_one_place_keep_their_order_and_may_not_overlap():
    assert apply("abc", [Edit(1, 1, "x"), Edit(1, 1, "y"), Edit(2, 3, "")]) == "axyb"
    with pytest.raises(ValueError, match="overlap"):
        apply("abc", [Edit(0, 2, ""), Edit(1, 3, "")])


SCOPES = """\
import torch as t
x = 1
def f(a, b=x):
    global g
    g = a
    [c for c in b]
    def inner():
        nonlocal a
        a = d
    with open(a) as d, b as (e, *h):
        pass
    try:
        pass
    except E as i:
        pass
    if (j := a) and [k := 1 for _ in a]:
        pass
    for l in a:
        del m
    match a:
        case {"x": n, **o}:
            pass
        case [p, *q] as r:
            pass
    class C:
        s = 1
    lambda u: u
    import os.path as v, os.path
"""


def test_names_are_bound_where_python_binds_them():
    import symtable

    script = Script("x.py", SCOPES.encode())
    table = symtable.symtable(SCOPES, "x.py", "exec")
    function = table.lookup("f").get_namespace()
    module_node = script.tree
    function_node = next(node for node in script.nodes(ast.FunctionDef) if node.name == "f")

    def bound(scope):
        names = {*function.get_identifiers(), *table.get_identifiers(), *"abcdefghijklmnopqrstuv"}
        return {name for name in names if script.lookup_in(name, scope)}

    local = {s.get_name() for s in function.get_symbols() if s.is_local()}
    assert bound(function_node) == local
    symbols = table.get_symbols()
    outside = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    assert bound(module_node) == outside | {"f", "g"}


# The same bytes as the patches of the series, which print the whole file anew by LibCST

SPACE = st.sampled_from(["", " ", "  "])
COMMENT = st.sampled_from(["", "  # why", "\t#view(-1)"])


@st.composite
def hits(draw) -> list[str]:
    name = draw(st.sampled_from(["correct", "self.hits", "is_correct", "corrects"]))
    bound = draw(st.sampled_from(["k", "5", "self.topK", "max(topk)", "k, :"]))
    a, b, c = draw(SPACE), draw(SPACE), draw(SPACE)
    tail = draw(st.sampled_from(["", ".float().sum(0)", "\\\n        .sum()"]))
    method = draw(st.sampled_from(["view", "view", "reshape", "contiguous().view"]))
    return [f"n = {name}{a}[:{b}{bound}]{c}.{method}({a}-1{b}){tail}{draw(COMMENT)}"]


@st.composite
def option(draw) -> list[str]:
    parser = draw(st.sampled_from(["parser", "p", "self.parser", "group"]))
    default = draw(st.sampled_from(["-1", "0", "1", "- 1", "0x0"]))
    quote = draw(st.sampled_from(['"', "'", '"""']))
    spelling = draw(st.sampled_from(["local_rank", "local-rank"]))
    arguments = draw(st.permutations([f"default={default}", "type=int", "help='ä #'"]))
    gap = draw(st.sampled_from([", ", ",", ",\n        ", ",  # one\n        "]))
    end = draw(st.sampled_from(["", ",", ",\n    "]))
    return [
        f"{parser}.add_argument({quote}--{spelling}{quote}{gap}{gap.join(arguments)}{end}){draw(COMMENT)}"
    ]


PLAIN = st.sampled_from(
    [
        ["pass"],
        ["x = '''", "view(-1)'''"],
        ["# --local_rank"],
        ["y = [1,", "     2]"],
        [""],
        ["\x0c", "pass"],
    ]
)


@st.composite
def script(draw) -> bytes:
    lines = draw(
        st.sampled_from(
            [["import os"], ["import argparse", "import os", "import torch"], ["import os as _os"]]
        )
    )
    lines = [
        *draw(st.sampled_from([[], ["#!/usr/bin/env python", "# ä"], ['"""About', 'it."""']])),
        *lines,
    ]
    for chosen in draw(st.lists(st.one_of(hits(), option(), PLAIN), max_size=6)):
        head = draw(st.sampled_from(["", "def f(self):", "if x:", "class A:"]))
        indent = "    " if head else ""
        body = [
            indent + line if not line.startswith(("view(", "\x0c")) else line for line in chosen
        ]
        lines += [head, *body, indent + "pass"] if head else body
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    text = newline.join(lines).replace("\r\n", "\n").replace("\n", newline) + draw(
        st.sampled_from(["", newline])
    )
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode()


@settings(deadline=None, max_examples=150)
@given(script())
def test_edits_by_position_are_those_of_the_patches_of_the_series(source):
    done = rewrite("script.py", source, ["local_rank_from_env", "reshape_topk"])
    assert done.problem is None
    expected = once(source, make("local_rank_from_env", fallback=True))
    assert done.after == once(expected, make("reshape_topk"))


@settings(deadline=None, max_examples=150)
@given(script(), st.data())
def test_statements_that_are_parsed_anew_give_the_tree_of_the_whole(source, data):
    before = Script("script.py", source)
    names = [
        node for node in before.nodes(ast.Name, ast.Constant) if node.lineno == node.end_lineno
    ]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=4)) if names else []
    new = st.sampled_from(["x", "(ä, '#')", "f(1, 2)[:k]", "(x,\n y)"])
    edits = [
        Edit(*before.span(node), data.draw(new))
        for node in chosen
        if not isinstance(before.parents[node], ast.Expr)
    ]
    text = apply(before.text, edits)
    try:
        tree = ast.parse(text)
    except SyntaxError:  # an assignment to a number, say
        with pytest.raises(Problem):
            before.edited(edits)
        return
    after = before.edited(edits)
    assert after.text == text
    assert ast.dump(after.tree, include_attributes=True) == ast.dump(tree, include_attributes=True)


def comments(source: bytes) -> list[str]:
    return [
        t.string
        for t in tokenize.tokenize(io.BytesIO(source).readline)
        if t.type == tokenize.COMMENT
    ]


@settings(deadline=None, max_examples=100)
@given(script())
def test_every_comment_survives_and_a_second_run_changes_nothing(source):
    done = rewrite(
        "script.py", source, list(PATCHES), {"local_rank_from_env": {"both_spellings": True}}
    )
    assert comments(done.after) == comments(done.before)
    again = rewrite(
        "script.py", done.after, list(PATCHES), {"local_rank_from_env": {"both_spellings": True}}
    )
    assert again.after == done.after
