"""Lines stand under the bracket that they belong to after an edit, and no other line moves."""

import ast

import libcst as cst
import pytest

from patcher.tree import layout


@pytest.mark.parametrize(
    "text, aligned",
    [
        pytest.param(
            "x = long.f(a,\n      b)\n",
            "x = long.f(a,\n           b)\n",
            id="under the first argument",
        ),
        pytest.param("f(a,\n         b)\n", "f(a,\n  b)\n", id="moved back"),
        pytest.param("    f(a,\n   b)\n", "    f(a,\n      b)\n", id="indented statement"),
        pytest.param(
            "f(\n    a,\n    b)\n", "f(\n    a,\n    b)\n", id="bracket that ends its line"
        ),
        pytest.param("f(g(a,\n  b),\n  c)\n", "f(g(a,\n    b),\n  c)\n", id="two brackets"),
        pytest.param(
            "f(x, [\n    a,\n])\n",
            "f(x, [\n    a,\n])\n",
            id="closing bracket keeps its own column",
        ),
        pytest.param(
            "longer(a, [\n    1,\n],\n  b)\n",
            "longer(a, [\n    1,\n],\n       b)\n",
            id="argument after a block",
        ),
        pytest.param(
            "f(a,  # why\n# and so\n  b)\n", "f(a,  # why\n  # and so\n  b)\n", id="comments"
        ),
        pytest.param("f(a,\n\n b)\n", "f(a,\n\n  b)\n", id="blank line"),
        pytest.param("f('''a\nb''',\n c)\n", "f('''a\nb''',\n  c)\n", id="string over lines"),
        pytest.param("f('(',\n c)\n", "f('(',\n  c)\n", id="bracket in a string"),
        pytest.param("x = 1 + \\\n  2\n", "x = 1 + \\\n  2\n", id="backslash"),
        pytest.param(
            "x = {'a': [1,\n 2],\n 'b': 3}\n",
            "x = {'a': [1,\n           2],\n     'b': 3}\n",
            id="dict",
        ),
        pytest.param("f(a,\r\n b)\r\n", "f(a,\r\n  b)\r\n", id="crlf"),
        pytest.param("x = 1\n", "x = 1\n", id="one line"),
    ],
)
def test_line_stands_under_the_first_thing_in_its_bracket(text, aligned):
    assert layout.realigned(text) == aligned
    assert layout.realigned(aligned) == aligned
    before, after = (ast.dump(ast.parse(t.strip())) for t in (text, aligned))
    assert before == after


def edited(before: str, old: str, new: str) -> str:
    """A module in which an edit has made one top-level statement new; all others are the same
    nodes.
    """
    pristine = cst.parse_module(before)
    replaced = [s for s in pristine.body if old in pristine.code_for_node(s)]
    (statement,) = replaced
    other = cst.parse_module(pristine.code_for_node(statement).replace(old, new)).body[0]
    body = [other if s is statement else s for s in pristine.body]
    return layout.aligned(pristine, pristine.with_changes(body=body)).code


def test_only_statements_that_changed_are_aligned():
    before = "a = f(1,\n 2)\nb = f(1,\n      2)\n"
    assert edited(before, "b = f", "b = long.f") == "a = f(1,\n 2)\nb = long.f(1,\n           2)\n"


def test_statements_in_blocks_are_found_wherever_they_stand():
    before = (
        "def f():\n    if a:\n        x(1,\n 2)\n"
        "    else:\n        with b:\n            x(1,\n 2)\n"
        "    try:\n        x(1,\n 2)\n    finally:\n        x(1,\n 2)\n"
    )
    pristine = cst.parse_module("")
    after = layout.aligned(pristine, cst.parse_module(before)).code
    assert after.count(",\n 2") == 0
    assert [
        len(line) - len(line.lstrip()) for line in after.split("\n") if line.strip() == "2)"
    ] == [10, 14, 10, 10]


def test_lines_above_a_statement_stay():
    before = "# one\n\nx(1,\n  2)\n"
    assert edited(before, "x(1", "long(1") == "# one\n\nlong(1,\n     2)\n"


def test_module_without_a_change_is_returned_as_it_is():
    module = cst.parse_module("x(1,\n 2)\n")
    assert layout.aligned(module, module) is module
