"""Predicates over nodes: what they take, and the look-alikes that they do not."""

import re

import libcst as cst
import pytest

from patcher.tree import syntax


def node(source: str) -> cst.BaseExpression:
    return cst.parse_expression(source)


@pytest.mark.parametrize(
    "source, is_one", [("a.view(1)", True), ("a.b().view()", True), ("a[0].view", False)]
)
def test_method_call_is_a_call_of_an_attribute(source, is_one):
    assert syntax.is_method_call(node(source), "view") == is_one


@pytest.mark.parametrize(
    "source", ["view(1)", "a.viewer(1)", "a.view.b(1)", "a.view[0](1)", "a(view)"]
)
def test_look_alike_of_a_method_call_is_none(source):
    assert not syntax.is_method_call(node(source), "view")


@pytest.mark.parametrize(
    "source, value",
    [("0", 0), ("-1", -1), ("- 1", -1), ("--1", 1), ("(3)", 3), ("0x10", 16), ("1_000", 1000)]
    + [(source, None) for source in ("1.0", "+1", "~1", "a", "'1'", "1 - 2", "True", "-a")],
)
def test_integer_is_the_value_of_a_literal(source, value):
    assert syntax.integer(node(source)) == value


@pytest.mark.parametrize(
    "source, value",
    [("'a'", "a"), ('"""a"""', "a"), ("r'\\a'", "\\a"), ("'\\x41'", "A")]
    + [(source, None) for source in ("b'a'", "f'a'", "'a' 'b'", "a", "1")],
)
def test_string_is_the_value_of_a_plain_literal(source, value):
    assert syntax.string(node(source)) == value


@pytest.mark.parametrize(
    "source, adds",
    [
        ("p.add_argument('--gpus')", True),
        ("self.parser.add_argument('-g', '--gpus', type=int)", True),
        ("p.add_argument('--gpu')", False),
        ("p.add_argument('-g', help='--gpus')", False),
        ("p.add_argument(name)", False),
        ("add_argument('--gpus')", False),
        ("p.add_option('--gpus')", False),
    ],
)
def test_option_is_added_by_one_of_its_spellings(source, adds):
    assert syntax.adds_option(node(source), "--gpus") == adds


@pytest.mark.parametrize(
    "source, name",
    [
        ("import os\n", "os"),
        ("import a, os as o, b\n", "o"),
        ("x = 1; import os\n", "os"),
        ("import os.path\n", None),
        ("from os import path\n", None),
        ("def f():\n    import os\n", None),
        ("if x:\n    import os\n", None),
        ("os = 1\n", None),
    ],
)
def test_name_of_an_imported_module_is_the_one_that_the_top_level_binds(source, name):
    assert syntax.imported_as(cst.parse_module(source), "os") == name


def test_argument_is_found_by_keyword_only():
    call = node("f(default, type=int, default=1)")
    assert syntax.argument(call, "default") is call.args[2]
    assert syntax.argument(call, "int") is None


@pytest.mark.parametrize(
    "call, after",
    [
        ("f(a)", "f(a, k=v)"),
        ("f(a, b=1)", "f(a, b=1, k=v)"),
        ("f(a,\n  b)", "f(a,\n  b,\n  k=v)"),
        ("f(\n    a,\n    b,\n)", "f(\n    a,\n    b,\n    k=v,\n)"),
    ],
)
def test_argument_is_added_as_the_others_are_laid_out(call, after):
    assert (
        cst.Module([]).code_for_node(syntax.with_keyword(node(call), "k", cst.Name("v"))) == after
    )


@pytest.mark.parametrize(
    "state, after",
    [
        ("{'a': 1}", "{'a': 1, **v}"),
        ("{\n    'a': 1,\n    'b': 2\n}", "{\n    'a': 1,\n    'b': 2,\n    **v\n}"),
        ("{'a': 1, 'b': 2,}", "{'a': 1, 'b': 2, **v,}"),
    ],
)
def test_element_is_added_as_the_others_are_laid_out(state, after):
    assert cst.Module([]).code_for_node(syntax.with_element(node(state), cst.Name("v"))) == after


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_statements_of_code_keep_the_blank_line_above(newline):
    first, second = syntax.statements("\na()\nif b:\n    c()\n", newline)
    assert cst.Module([first, second]).code.replace("\r\n", "\n") == "\na()\nif b:\n    c()\n"
    assert len(first.leading_lines) == 1 and not second.leading_lines


def test_variable_is_replaced_and_not_an_attribute_or_a_keyword_of_its_name():
    line = cst.parse_statement("best = max(best, run.best, f(best=best.best))\n")
    new = syntax.replaced(line, "best", cst.parse_expression("run.top"))
    assert cst.Module([new]).code == "run.top = max(run.top, run.best, f(best=run.top.best))\n"


class Removing:
    """Removes each line that calls `go`."""

    drops = ("# of go",)

    def on_visit(self, node):
        return True

    def on_leave(self, original, updated):
        call = syntax.expression(updated)
        return (
            cst.RemovalSentinel.REMOVE
            if call is not None and syntax.is_call(call, "go")
            else updated
        )


@pytest.mark.parametrize(
    "before, after",
    [
        ("a()\n# why\ngo()\nb()\n", "a()\n# why\nb()\n"),
        ("a()\n# of go\ngo()\nb()\n", "a()\nb()\n"),
        ("a()\n\n# one\n# of go\ngo()\n# two\nb()\n", "a()\n\n# one\n# two\nb()\n"),
        ("a()\n\ngo()\nb()\n", "a()\n\nb()\n"),
        ("a()\ngo()  # there\nb()\n", "a()\n# there\nb()\n"),
        ("a()\ngo(1,  # first\n   2)\n\nb()\n", "a()\n# first\n\nb()\n"),
        ("a()\n# why\ngo()\n", "a()\n# why\n"),
        ("a()\n# why\ngo()\n# end\n", "a()\n# why\n# end\n"),
        ("a()\n# one\ngo()\n# two\ngo()\nb()\n", "a()\n# one\n# two\nb()\n"),
    ],
)
def test_comments_of_a_removed_statement_stay_above_the_next(before, after):
    """T10: but for those that the patch says go with it."""
    head, indented = "def f():\n", lambda text: re.sub("(?m)^(?=.)", "    ", text)
    function = cst.parse_module(head + indented(before) + "x()\n")
    body = [syntax.walk(statement, Removing()) for statement in function.body]
    assert function.with_changes(body=body).code == head + indented(after) + "x()\n"
    if "of go" not in before:
        (block,) = (
            syntax.without(node.body, lambda line: "go" in cst.Module([line]).code)
            for node in function.body[:1]
        )
        result = function.with_changes(
            body=[function.body[0].with_changes(body=block), *function.body[1:]]
        ).code
        assert re.findall("#.*", result) == re.findall("#.*", before)
