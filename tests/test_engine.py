"""Bytes and a series in, bytes and verdicts out."""

import ast
import io
import itertools
import re
import tokenize
from types import MappingProxyType

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher import Patch
from patcher.core.engine import render
from patcher.core.problem import Problem
from patcher.core.single_pass import Printer, apply_once, parse
from patcher.core.text import mark
from patcher.core.truth import Verdict
from patcher.tree import syntax
from patcher.tree.places import Place


def calls_new(self, node):
    return isinstance(node, cst.Call) and syntax.is_name(node.func, "new")


def call_new(self, original, updated):
    return (
        updated.with_changes(func=cst.Name("new"))
        if syntax.is_name(updated.func, "old")
        else updated
    )


def modernise(sites=MappingProxyType({"f": 1}), **attributes) -> Patch:
    """A patch that makes `new(...)` of `old(...)`, or what `attributes` make of it."""
    edit = {"needles": (b"old", b"new"), "done": calls_new, "leave_Call": call_new}
    about = {"__doc__": "Call new instead of old.", "__module__": __name__}
    return type("Modernise", (Patch,), {**about, **edit, "sites": {"f.py": sites}, **attributes})()


def judge(source, patch=None):
    """The one outcome on f.py, and the source after it."""
    source = source if isinstance(source, bytes) else source.encode()
    rendered = render("f.py", source, [patch or modernise()])
    assert len(rendered.outcomes) == 1
    return rendered.outcomes[0], rendered.after


F = "def f():\n    old()\n"


# The truth table


def test_as_many_hits_as_stated_and_done_only_after_is_clean():
    outcome, after = judge(F)
    assert (outcome.verdict, outcome.expected, outcome.found) == (Verdict.CLEAN, {"f": 1}, {"f": 1})
    assert after == b"def f():\n    new()\n"


def test_no_hit_and_done_before_is_obsolete():
    source = "def f():\n    new()\n"
    outcome, after = judge(source)
    assert (outcome.verdict, outcome.found) == (Verdict.OBSOLETE, {})
    assert after == source.encode()


@pytest.mark.parametrize(
    "source, sites, found, line, detail",
    [
        pytest.param(
            "x = 1\n\n\ndef f():\n    pass\n",
            {"f": 1},
            {},
            4,
            "nothing to edit in f",
            id="nothing there",
        ),
        pytest.param("x = 1\n", {"f": 1}, {}, 0, "there is no function f", id="no such function"),
        pytest.param("", {"f": 1}, {}, 0, "there is no function f", id="empty file"),
        pytest.param(
            "# old()\n", {"f": 1}, {}, 0, "there is no function f", id="only in a comment"
        ),
        pytest.param(
            "def f():\n    return 'old()'  # old()\n",
            {"f": 1},
            {},
            1,
            "nothing to edit in f",
            id="only in a string and a comment",
        ),
        pytest.param(
            "def f():\n    gold()\n", {"f": 1}, {}, 1, "nothing to edit in f", id="another name"
        ),
        pytest.param(
            "\ndef g():\n    old(1)\n", {"f": 1}, {"g": 1}, 3, "in g: old(1)", id="wrong function"
        ),
        pytest.param(
            F + "\ndef g():\n    x = old(2)\n",
            {"f": 1},
            {"f": 1, "g": 1},
            5,
            "in g: old(2)",
            id="in one more function",
        ),
        pytest.param(
            "def f():\n    old()\n    old()\n",
            {"f": 1},
            {"f": 2},
            2,
            "in f: old()",
            id="once too often",
        ),
        pytest.param(F, {"f": 2}, {"f": 1}, 1, "nothing to edit in f", id="once too few"),
        pytest.param(
            F + "def g():\n    pass\n",
            {"f": 1, "g": 1},
            {"f": 1},
            3,
            "nothing to edit in g",
            id="one of two functions",
        ),
        pytest.param(
            "old()\n" + F,
            {"f": 1},
            {"<module>": 1, "f": 1},
            1,
            "in <module>: old()",
            id="outside too",
        ),
        pytest.param(
            "class A:\n    def f(self):\n        old()\n",
            {"f": 1},
            {"A.f": 1},
            3,
            "in A.f: old()",
            id="a method",
        ),
        pytest.param(
            "if True:\n    def f():\n        pass\n",
            {"f": 1},
            {},
            2,
            "nothing to edit in f",
            id="function in an if",
        ),
    ],
)
def test_any_other_count_is_stale_and_says_where(source, sites, found, line, detail):
    outcome, after = judge(source, modernise(sites))
    assert (outcome.verdict, outcome.expected, outcome.found) == (Verdict.STALE, sites, found)
    assert (outcome.line, outcome.detail) == (line, detail)
    assert after == source.encode()


def test_missing_site_outside_any_function_is_stale_and_says_so():
    outcome, _ = judge("x = 1\n", modernise({"<module>": 1}))
    assert (outcome.verdict, outcome.expected, outcome.found) == (
        Verdict.STALE,
        {"<module>": 1},
        {},
    )
    assert "<module>" in outcome.detail


def test_half_patched_file_is_stale_even_where_the_count_fits():
    outcome, after = judge("def f():\n    new()\n    old()\n")
    assert (outcome.verdict, outcome.found) == (Verdict.STALE, {"f": 1})
    assert "already there" in outcome.detail
    assert after == b"def f():\n    new()\n    old()\n"


def test_half_patched_file_with_a_hit_too_few_is_stale_with_both_counts():
    outcome, _ = judge("def f():\n    new()\n\ndef g():\n    old()\n", modernise({"f": 1, "g": 1}))
    assert (outcome.verdict, outcome.expected, outcome.found) == (
        Verdict.STALE,
        {"f": 1, "g": 1},
        {"g": 1},
    )


def test_patch_that_finds_its_own_result_is_stale():
    def wrap(self, original, updated):
        return (
            cst.parse_expression("new(old())") if syntax.is_name(updated.func, "old") else updated
        )

    outcome, after = judge(F, modernise(leave_Call=wrap))
    assert outcome.verdict is Verdict.STALE
    assert "a second pass would edit 1 more" in outcome.detail
    assert after == F.encode()


def test_patch_that_does_not_see_its_own_result_is_stale():
    outcome, after = judge(F, modernise(done=lambda self, node: False))
    assert outcome.verdict is Verdict.STALE
    assert "`done` does not see the edit" in outcome.detail
    assert after == F.encode()


def test_patch_with_a_needle_too_few_is_stale_rather_than_trusted():
    outcome, _ = judge(F, modernise(needles=(b"old",)))  # does not cover what `done` looks for
    assert outcome.verdict is Verdict.STALE


def test_every_patch_is_judged_although_the_first_is_stale():
    def other(self, original, updated):
        return (
            updated.with_changes(func=cst.Name("new"))
            if syntax.is_name(updated.func, "gone")
            else updated
        )

    gone = modernise(needles=(b"gone", b"new"), leave_Call=other)
    rendered = render("f.py", F.encode(), [gone, modernise(), gone])
    assert [outcome.verdict for outcome in rendered.outcomes] == [
        Verdict.STALE,
        Verdict.CLEAN,
        Verdict.OBSOLETE,
    ]
    assert rendered.stale
    assert rendered.before == F.encode()


def test_patch_can_be_derived_from_another_patch():
    derived = type("Derived", (type(modernise()),), {"__module__": __name__})
    assert judge(F, derived())[0].verdict is Verdict.CLEAN


def test_file_that_no_patch_names_is_returned_as_it_is():
    rendered = render("g.py", b"old()\r\n\x0c", [modernise()])
    assert (rendered.before, rendered.after, rendered.outcomes) == (
        b"old()\r\n\x0c",
        b"old()\r\n\x0c",
        (),
    )


def test_patch_given_to_two_files_counts_each_on_its_own():
    patch = modernise()
    first, second = (render("f.py", F.encode(), [patch]) for _ in range(2))
    assert first == second
    assert patch.hits == []


def test_result_that_does_not_compile_is_a_problem_that_blames_no_upstream():
    # LibCST prints a return outside a function as readily as any other.
    patch = modernise(
        {"<module>": 1},
        needles=(b"old", b"return"),
        done=lambda self, node: isinstance(node, cst.Return),
        leave_Expr=lambda self, original, updated: cst.Return(),
        leave_Call=lambda self, original, updated: updated,
    )
    with pytest.raises(Problem) as caught:
        render("f.py", b"old()\n", [patch])
    assert "outside function" in caught.value.message
    assert caught.value.file == "f.py"
    assert "Mend the file" not in caught.value.hint  # upstream/f.py is fine, and nobody may edit it


# Bytes

BODY = (
    b"def f():\n    a = 1 ;  b=2  \n    # untouched\n\n    old( 1,2 )  # why\n\n\nc = ( 3 ,\n  4)\n"
)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(BODY, id="plain"),
        pytest.param(BODY.replace(b"\n", b"\r\n"), id="crlf"),
        pytest.param(
            BODY.replace(b"\n", b"\r\n").removesuffix(b"\r\n"), id="crlf, no final newline"
        ),
        pytest.param(b"\xef\xbb\xbf" + BODY, id="bom"),
        pytest.param(
            b"\xef\xbb\xbf# coding: utf-8\r\n" + BODY.replace(b"\n", b"\r\n"),
            id="bom, cookie, crlf",
        ),
        pytest.param(BODY.removesuffix(b"\n"), id="no final newline"),
        pytest.param(BODY + b"\n\n\n", id="blank lines at the end"),
        pytest.param(BODY.removesuffix(b"\n") + b"\r", id="lone cr at the end"),
        pytest.param(BODY + b"# end", id="comment without newline at the end"),
        pytest.param(BODY.replace(b"    ", b"\t"), id="tabs"),
        pytest.param(BODY.replace(b"    ", b"  "), id="two spaces"),
        pytest.param(
            b"# -*- coding: latin-1 -*-\n" + BODY.replace(b"untouched", b"\xe4\xff\x80"),
            id="latin-1",
        ),
        pytest.param(
            b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\ns = '\x80'\n" + BODY, id="cp1252"
        ),
        pytest.param(BODY.replace(b"\n\nc", b"\n\x0c\n\nc"), id="form feed"),
        pytest.param(b"\x0c\n" + BODY, id="form feed at the top"),
        pytest.param(BODY.replace(b"\n\n", b"\r\n\n"), id="mixed endings"),
        pytest.param(BODY.replace(b"\n", b"\r\n", 1), id="one crlf"),
        pytest.param(
            "s = 'ä\u2028\x85 \U0001f600'\n".encode() + BODY, id="line separators in a string"
        ),
        pytest.param(b"s = '''\\\n\t \n'''\n" + BODY, id="triple quotes"),
        pytest.param(b"s = 1 + \\\n  2\n" + BODY, id="continuation"),
        pytest.param(b"if 1:\n        x = 1\nelse:\n y = 2\n" + BODY, id="uneven indentation"),
    ],
)
def test_only_the_edited_bytes_change(source):
    outcome, after = judge(source)
    assert outcome.verdict is Verdict.CLEAN
    assert after == source.replace(b"old( 1,2 )", b"new( 1,2 )")


def with_import() -> Patch:
    """A patch that makes `os.new(...)` of `old(...)`."""

    def edit(self, original, updated):
        if not syntax.is_name(updated.func, "old"):
            return updated
        return updated.with_changes(
            func=cst.Attribute(cst.Name(self.module_name("os")), cst.Name("new"))
        )

    return modernise(done=lambda self, node: syntax.is_method_call(node, "new"), leave_Call=edit)


@pytest.mark.parametrize(
    "source, line",
    [
        (BODY, b"import os\n"),
        (BODY.replace(b"\n", b"\r\n"), b"import os\r\n"),
        (BODY.replace(b"\n\n", b"\r\n\r\n"), b"import os\n"),  # mixed: as the first line ends
        (b"\xef\xbb\xbf" + BODY, b"import os\n"),
    ],
    ids=["lf", "crlf", "mixed", "bom"],
)
def test_inserted_line_ends_as_the_lines_of_the_file_do(source, line):
    outcome, after = judge(source, with_import())
    assert outcome.verdict is Verdict.CLEAN
    head = source[: source.index(b"def f")]
    assert after == head + line + source[len(head) :].replace(b"old(", b"os.new(")


def test_import_that_is_there_is_not_inserted_again():
    _, after = judge(b"import os as o\n" + BODY, with_import())
    assert after == b"import os as o\n" + BODY.replace(b"old(", b"o.new(")


# What a patch may ask for

PLACES = """\
import os

p = Parser()
p.add_argument('--one', '-o')
p.add_argument('--two',
               default=2)


def f(feed, net):
    args = p.parse_args()
    sgd = torch.optim.SGD(net.parameters(), 1)
    images = DataLoader(args)

    for x in feed:
        go(x)
    end(args, sgd)
    save_checkpoint(args)


def g(given):
    pass
"""
OPTIONS = b"def add_options(parser):\n    parser.add_argument('--%s', '--%s-too')\n"
HELPERS = {
    name: OPTIONS % (name.encode(), name.encode()) for name in ("apples", "berries", "cherries")
}
HELPERS |= {
    "__init__": b"",
    "plain": b"from . import ours\nfrom .apples import x\n",
    "ours": b"",
    "unused": b"",
}
HELPERS["apart"] = (
    b"def shown(x):\n    return x\n\n\ndef add_options(p2):\n    p2.add_argument('--apart')\n"
)


def asking(name: str, ask, function: str = "f") -> Patch:
    """A patch `name` that calls `ask` on a function and writes `name()` first in it."""

    def leave(self, original, updated):
        if self.function != function or self.is_done_in(updated):
            return updated
        asked = ask(self, updated)
        updated = asked if isinstance(asked, cst.CSTNode) else updated
        if self.is_done_in(updated):
            return updated
        first = syntax.statements(f"{name}()\n", self.module.default_newline)
        return updated.with_changes(
            body=updated.body.with_changes(body=[*first, *updated.body.body])
        )

    about = {"__doc__": "Ask.", "__module__": f"patches.{name}", "sites": {"f.py": {function: 1}}}
    edit = {
        "needles": (b"def ",),
        "done": lambda self, node: syntax.is_call(node, name),
        "leave_FunctionDef": leave,
    }
    return type("Asking", (Patch,), {**about, **edit})()


def asked(*patches: Patch, source: str = PLACES):
    """The outcomes and the lines of the script."""
    rendered = render("f.py", source.encode(), patches, HELPERS)
    return rendered.outcomes, rendered.after.decode().split("\n"), rendered.support


def refused(*patches: Patch, source: str = PLACES) -> tuple[int, str]:
    """Line and reason of the last outcome, which has to be a refusal; the script is as if that
    patch were not there.
    """
    *before, _ = patches
    outcomes, lines, _ = asked(*patches, source=source)
    assert (outcomes[-1].verdict, outcomes[-1].refused) == (Verdict.STALE, True)
    assert lines == (asked(*before, source=source)[1] if before else source.split("\n"))
    return outcomes[-1].line, outcomes[-1].detail


def line_of(text: str, source: str = PLACES) -> int:
    return 1 + [line.strip() for line in source.split("\n")].index(text)


def placing(name: str, place: Place, rank: int) -> Patch:
    return asking(
        name, lambda self, function: self.insert(function, place, f"{name}()\n{name}(1)\n", rank)
    )


AT = {
    Place.PARSED: ("args = p.parse_args()", "sgd = torch.optim.SGD(net.parameters(), 1)"),
    Place.OPTIMIZER: ("sgd = torch.optim.SGD(net.parameters(), 1)", "images = DataLoader(args)"),
    Place.LOADERS: ("images = DataLoader(args)", "for x in feed:"),
    Place.BEFORE_LOOP: ("images = DataLoader(args)", "for x in feed:"),
    Place.FIRST_IN_LOOP: ("for x in feed:", "go(x)"),
    Place.LAST_IN_LOOP: ("go(x)", "end(args, sgd)"),
    Place.AFTER_LOOP: ("go(x)", "end(args, sgd)"),
    Place.SAVED: ("save_checkpoint(args)", "def g(given):"),
}


@pytest.mark.parametrize("place", Place)
def test_statements_at_a_place_are_in_the_order_of_their_ranks_whichever_patch_comes_first(place):
    patches = [
        placing("c", place, 10),
        placing("a", place, 20),
        placing("b", place, 20),
        placing("d", place, 30),
    ]
    results = [asked(*order) for order in itertools.permutations(patches)]
    for outcomes, lines, _ in results:
        assert {outcome.verdict for outcome in outcomes} == {Verdict.CLEAN}
        assert lines == results[0][1]
    code = [line.strip() for line in results[0][1] if line.strip()]
    first, last = (code.index(text) for text in AT[place])
    assert code[first + 1 : last] == ["c()", "c(1)", "a()", "a(1)", "b()", "b(1)", "d()", "d(1)"]
    looped = place in (Place.FIRST_IN_LOOP, Place.LAST_IN_LOOP)
    assert {line.index("(") for line in results[0][1] if line.strip() in ("a()", "d(1)")} == {
        9 if looped else 5
    }


def test_places_are_found_in_blocks_of_a_function():
    source = (
        "def f(feed):\n    with a:\n        if b:\n"
        "            for x in feed:\n                go()\n"
    )
    _, lines, _ = asked(
        placing("a", Place.AFTER_LOOP, 1), placing("b", Place.FIRST_IN_LOOP, 1), source=source
    )
    assert lines[3:] == [
        "            for x in feed:",
        "                b()",
        "                b(1)",
        "                go()",
        "            a()",
        "            a(1)",
        "",
    ]


@pytest.mark.parametrize("place", Place)
def test_function_without_the_place_is_refused_at_its_line(place):
    patch = asking("a", lambda self, function: self.insert(function, place, "a()\n"), "g")
    line, why = refused(patch)
    assert line == line_of("def g(given):") and why.startswith(f"g has no place {place.value}")


def test_loop_with_a_continue_has_no_last_place():
    source = PLACES.replace("        go(x)", "        if x:\n            continue\n        go(x)")
    line, why = refused(placing("a", Place.LAST_IN_LOOP, 1), source=source)
    assert (line, why) == (
        line_of("def f(feed, net):", source),
        f"f has no place {Place.LAST_IN_LOOP.value}, or a `continue` skips it",
    )


def test_patch_refuses_with_a_line_and_a_reason():
    def at_loop(self, function):
        self.refuse(
            "there is a loop", next(n for n in function.body.body if isinstance(n, cst.For))
        )

    assert refused(asking("a", at_loop)) == (line_of("for x in feed:"), "there is a loop")
    assert refused(asking("a", lambda self, function: self.refuse("so"))) == (
        line_of("def f(feed, net):"),
        "so",
    )


def test_refusal_leaves_the_other_patches_as_they_are():
    def both(self, function):
        self.support("plain")
        self.refuse("no")

    fine = asking("b", lambda self, function: self.add_options("apples"))
    outcomes, lines, support = asked(asking("a", both), fine)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.STALE, Verdict.CLEAN]
    assert (lines, support) == asked(fine)[1:]


def test_options_of_modules_stand_in_one_order_below_those_of_the_script():
    patches = [
        asking(name[0], lambda self, _, name=name: self.add_options(name))
        for name in HELPERS
        if "rr" in name
    ]
    patches.append(asking("z", lambda self, _: self.add_options("apples")))
    for order in itertools.permutations(patches):
        outcomes, lines, _ = asked(*order)
        assert {outcome.verdict for outcome in outcomes} == {Verdict.CLEAN}
        at = lines.index("               default=2)")
        loop = ["for module in (apples, berries, cherries):", "    module.add_options(p)"]
        assert lines[at + 1 : at + 4] == [*loop, ""]


def adding(*names: str) -> list:
    return [asking(name[0], lambda self, _, name=name: self.add_options(name)) for name in names]


def test_options_of_one_module_or_of_a_script_with_a_module_are_lines():
    for source, names in ((PLACES, ["apples"]), ("module = 1\n" + PLACES, ["apples", "berries"])):
        lines = render("f.py", source.encode(), adding(*names), HELPERS).after.decode().split("\n")
        at = lines.index("               default=2)")
        assert lines[at + 1 : at + 2 + len(names)] == [f"{n}.add_options(p)" for n in names] + [""]


def test_a_later_series_joins_the_loop_of_an_earlier_one():
    def again(source: bytes, *names: str) -> bytes:
        return render("f.py", source, adding(*names), HELPERS).after

    whole = again(PLACES.encode(), "apples", "berries", "cherries")
    for first in (["apples"], ["apples", "berries"]):
        begun = again(PLACES.encode(), *first)
        added = [name for name in ("apples", "berries", "cherries") if name not in first]
        patches = adding(*added)
        for patch in patches:
            patch.done = lambda node: False
        assert render("f.py", begun, patches, HELPERS).after == whole


@pytest.mark.parametrize("there", ["--apples", "--apples-too"])
@pytest.mark.parametrize(
    "ask", [lambda p: p.add_options("apples"), lambda p: p.inline("apples", "x")]
)
def test_option_that_the_script_has_already_is_refused_at_its_line(there, ask):
    source = PLACES.replace("'--two',", f"'{there}',")
    patch = asking("a", lambda self, _: ask(self))
    assert refused(patch, source=source) == (
        line_of(f"p.add_argument('{there}',", source),
        f"the script has an option {there} already",
    )


@pytest.mark.parametrize(
    "source",
    [
        "def f(feed):\n    pass\n",
        "def f(feed):\n    args = make().parse_args()\n",
        "def f(feed):\n    p = Parser()\n    p.add_argument('--one')\n    args = p.parse_args()\n",
    ],
    ids=["none", "without a name", "in a function"],
)
def test_options_need_a_parser_that_the_module_makes(source):
    line, why = refused(asking("a", lambda self, _: self.add_options("apples")), source=source)
    assert (line, "there is no `parser.parse_args()`" in why) == (1, True)


def test_support_is_imported_below_the_imports_and_a_missing_folder_is_said():
    _, lines, support = asked(asking("a", lambda self, _: self.support("plain") and None))
    assert lines[:10] == [
        "import os",
        "",
        "try:",
        "    from support import plain",
        "except ImportError as error:",
        "    raise SystemExit('{}: needs the folder support/ that was built with it: {}'.format(",
        "        __file__, error))",
        "",
        "p = Parser()",
        "p.add_argument('--one', '-o')",
    ]
    assert support == (
        "__init__",
        "apples",
        "ours",
        "plain",
    )  # with what it imports, and nothing else


def test_import_of_many_modules_is_wrapped_at_79_columns():
    names = [f"module_{'abcdefgh'[n]}{'x' * n}" for n in range(8)]
    helpers = dict.fromkeys([*names, "__init__"], b"")
    for count in range(1, 9):
        chosen = names[:count]

        def use(self, function, chosen=chosen):
            for name in reversed(chosen):
                self.support(name)

        after = render("f.py", PLACES.encode(), [asking("a", use)], helpers).after.decode()
        guard = next(node for node in ast.parse(after).body if isinstance(node, ast.Try))
        assert [alias.name for alias in guard.body[0].names] == chosen
        lines = after.split("\n")[guard.body[0].lineno - 1 : guard.body[0].end_lineno]
        assert max(map(len, lines)) <= 79
        assert (
            ("(" in lines[0])
            == (len(lines) > 1)
            == (len(f"    from support import {', '.join(chosen)}") > 79)
        )
        assert {line.index("module") for line in lines} == {lines[0].index("module")}


def test_module_that_there_is_not_is_refused():
    assert (
        refused(asking("a", lambda self, _: self.support("nosuch")))[1]
        == "there is no patches/support/nosuch.py"
    )


def test_support_of_upstreams_own_is_refused_at_its_line():
    use = asking("a", lambda self, _: self.support("plain") and None)
    source = PLACES.replace("import os\n", "import os\nimport support\n")
    assert refused(use, source=source) == (2, "the script has a support of its own")
    source = PLACES.replace("    end(args, sgd)", "    end(args, plain)")
    assert refused(use, source=source) == (
        line_of("end(args, plain)", source),
        "f has a plain of its own",
    )


def test_variable_that_another_patch_has_brought_is_refused_with_the_name_of_the_patch():
    bring = [asking(name, lambda self, _: self.bring("new") and None) for name in ("a", "b")]
    assert refused(*bring) == (
        line_of("def f(feed, net):"),
        "the patch a has brought a variable new into f",
    )
    other = asking("b", lambda self, _: self.bring("new") and None, "g")
    assert [outcome.verdict for outcome in asked(bring[0], other)[0]] == [
        Verdict.CLEAN,
        Verdict.CLEAN,
    ]


def test_variable_that_the_function_has_is_refused_at_its_line():
    patch = asking("a", lambda self, _: self.bring("sgd") and None)
    line = line_of("sgd = torch.optim.SGD(net.parameters(), 1)")
    assert refused(patch) == (line, "f has a sgd of its own")


def test_functions_and_options_of_a_module_can_be_written_into_the_script():
    outcomes, lines, support = asked(
        asking("a", lambda self, _: self.inline("apart", "shown") and None)
    )
    assert (outcomes[0].verdict, support) == (Verdict.CLEAN, ())
    assert "def shown(x):" in lines and "def add_options(p2):" not in lines
    assert lines[lines.index("               default=2)") + 1] == "p.add_argument('--apart')"
    assert lines.index("def shown(x):") < lines.index("def f(feed, net):")
    source = PLACES.replace("import os", "from os import shown")
    assert refused(
        asking("a", lambda self, _: self.inline("apart", "shown") and None), source=source
    ) == (1, "the script has a shown of its own")


class Renewing(Patch):
    """Write `new()` for `old(...)`, and take `bye()` out."""

    sites, needles = {"f.py": {"f": 1}}, (b"old", b"bye", b"new")

    def done(self, node):
        return syntax.is_call(node, "new")

    def leave_Call(self, original, updated):
        return (
            updated.with_changes(func=cst.Name("new"), args=())
            if syntax.is_call(updated, "old")
            else updated
        )

    def leave_SimpleStatementLine(self, original, updated):
        call = syntax.expression(updated)
        return cst.RemovalSentinel.REMOVE if syntax.is_call(call, "bye") else updated


@pytest.mark.parametrize(
    "source, after",
    [
        ("def f():\n    x = old(1)  # some\n", "def f():\n    x = new()  # some\n"),
        ("def f():\n    x = old('# 1')\n", "def f():\n    x = new()\n"),
        ("def f():\n    x = old(1,  # one\n            2)\n", None),
        ("def f():\n    x = old(1,  # gone\n            2)\n", "def f():\n    x = new()\n"),
    ],
)
def test_edit_that_would_lose_a_comment_is_refused(source, after):
    """T10: unless the patch lists it in `drops`."""
    patch = type(
        "Renewing", (Renewing,), {"__module__": "patches.renewing", "drops": ("# gone",)}
    )()
    rendered = render("f.py", source.encode(), [patch])
    (outcome,) = rendered.outcomes
    if after is None:
        assert (outcome.refused, outcome.line) == (True, 2)
        assert outcome.detail == "its edit would lose the comment '# one'"
    else:
        assert (outcome.verdict, rendered.after.decode()) == (Verdict.CLEAN, after)


def test_comment_of_a_removed_top_level_statement_stays():
    """T10: above the next one, or at the end of the file."""
    patch = type(
        "Renewing",
        (Renewing,),
        {"__module__": "patches.renewing", "sites": {"f.py": {"<module>": 3}}},
    )()
    rendered = render("f.py", b"old()\n# one\nbye()\ny()\n# two\nbye()  # three\n", [patch])
    assert rendered.after == b"new()\n# one\ny()\n# two\n# three\n"


def test_what_a_patch_asks_for_ends_its_lines_as_the_file_does():
    def ask(self, function):
        self.add_options(self.support("apples"))
        self.inline("apart", "shown")
        return self.insert(function, Place.PARSED, "\na()\n")

    source = PLACES.replace("\n", "\r\n")
    after = render("f.py", source.encode(), [asking("a", ask)], HELPERS).after
    assert after.count(b"\n") == after.count(b"\r\n") > PLACES.count("\n") + 8


# The @generated line

MARKED = [
    pytest.param(b"x = 1\n", b"# @\nx = 1\n", id="first line"),
    pytest.param(b"x = 1\r\ny = 2\r\n", b"# @\r\nx = 1\r\ny = 2\r\n", id="crlf"),
    pytest.param(b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbf# @\nx = 1\n", id="bom"),
    pytest.param(b"#!/bin/python\nx = 1\n", b"#!/bin/python\n# @\nx = 1\n", id="shebang"),
    pytest.param(
        b"#!/bin/python\r\nx = 1\r\n", b"#!/bin/python\r\n# @\r\nx = 1\r\n", id="shebang, crlf"
    ),
    pytest.param(
        b"# coding: latin-1\ns = '\xe9'\n", b"# coding: latin-1\n# @\ns = '\xe9'\n", id="cookie"
    ),
    pytest.param(
        b"#!/bin/python\n# vim: fileencoding=latin-1\ns = '\xe9'\n",
        b"#!/bin/python\n# vim: fileencoding=latin-1\n# @\ns = '\xe9'\n",
        id="shebang and cookie",
    ),
    pytest.param(
        b"\xef\xbb\xbf# -*- coding: utf-8 -*-\nx = 1\n",
        b"\xef\xbb\xbf# -*- coding: utf-8 -*-\n# @\nx = 1\n",
        id="both",
    ),
    pytest.param(
        b"# A licence.\n# coding: latin-1\ns = '\xe9'\n",
        b"# A licence.\n# coding: latin-1\n# @\ns = '\xe9'\n",
        id="cookie in the second line",
    ),
    pytest.param(
        b"\n# coding: latin-1\ns = '\xe9'\n",
        b"\n# coding: latin-1\n# @\ns = '\xe9'\n",
        id="cookie below a blank line",
    ),
    pytest.param(
        b"x = 1\n# coding: x\n", b"# @\nx = 1\n# coding: x\n", id="no cookie, for it is below code"
    ),
    pytest.param(b"'''About.'''\nx = 1\n", b"# @\n'''About.'''\nx = 1\n", id="docstring"),
    pytest.param(b"", b"# @\n", id="empty"),
    pytest.param(b"x = 1", b"# @\nx = 1", id="no newline"),
]


@pytest.mark.parametrize("source, marked", MARKED)
def test_mark_stands_on_the_first_line_where_a_comment_may(source, marked):
    assert mark(source, "@") == marked


@pytest.mark.parametrize("source", [param.values[0] for param in MARKED])
def test_mark_changes_neither_encoding_nor_meaning(source):
    marked = mark(source, "@generated")
    assert (
        tokenize.detect_encoding(io.BytesIO(marked).readline)[0]
        == (tokenize.detect_encoding(io.BytesIO(source).readline)[0])
    )
    assert ast.dump(ast.parse(marked)) == ast.dump(ast.parse(source))


HEAD = [
    "",
    "# x",
    "#!/bin/python",
    "# coding: latin-1",
    "# vim: fileencoding=utf-8",
    " \f# x",
    "x = 1",
    "''",
]


@given(st.lists(st.sampled_from(HEAD), max_size=4), st.sampled_from(["\n", "\r\n"]), st.booleans())
@settings(deadline=None, max_examples=200)
def test_mark_is_one_line_more_and_no_other_encoding_or_meaning(head, newline, bom):
    source = "".join(line + newline for line in [*head, "s = '\xe4'"]).encode("utf-8")
    source = b"\xef\xbb\xbf" + source if bom else source
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        meaning = ast.dump(ast.parse(source))
    except SyntaxError:  # a BOM against a cookie, or an indented first line
        return
    marked = mark(source, "@generated")
    assert marked.replace(b"# @generated" + newline.encode(), b"", 1) == source
    assert tokenize.detect_encoding(io.BytesIO(marked).readline)[0] == encoding
    assert ast.dump(ast.parse(marked)) == meaning


# What cannot be read


@pytest.mark.parametrize(
    "source, line, column, says",
    [
        pytest.param(b"x = 1\nprint 'x'\n", 2, 1, "print", id="python 2"),
        pytest.param(b"x = 1\n\ny = (\n", 3, 5, "never closed", id="open parenthesis"),
        pytest.param(b"x = 1\ny = '\n", 2, 5, "unterminated", id="open string"),
        pytest.param(b"x = 1\nif x:\n  a\n b\n", 4, ..., "unindent", id="indentation"),
        pytest.param(
            b"def f():\n\tif 1:\n        x\n", 3, ..., "tabs and spaces", id="tabs and spaces"
        ),
        pytest.param(b"x = 1\n\ny = '\x80'\n", 3, ..., "0x80", id="not utf-8"),
        pytest.param(b"x = 1\ny = '\x80'\n", 2, ..., "0x80", id="not utf-8 in the second line"),
        pytest.param(
            b"# coding: ascii\n# b\n# \xe9\n", 3, ..., "0xe9", id="not what the cookie says"
        ),
        pytest.param(
            b"# coding: nosuch\n", 1, ..., "unknown encoding: nosuch", id="unknown encoding"
        ),
        pytest.param(
            b"# coding: null\nx = 1\n",
            1,
            ...,
            "unknown encoding: null",
            id="encoding that is called null",
        ),
        pytest.param(b"# coding: hex\nx = 1\n", 1, ..., "hex", id="codec that is no encoding"),
        pytest.param(
            b"\xef\xbb\xbf# coding: latin-1\nx = 1\n",
            1,
            ...,
            "encoding",
            id="bom against the cookie",
        ),
        pytest.param(b"x = 1\ny = 2\0\n", 2, ..., "null byte", id="null byte"),
    ],
)
@pytest.mark.parametrize("patches", [[modernise()], []], ids=["for a patch", "for none"])
def test_unreadable_file_is_a_problem_that_says_where(source, line, column, says, patches):
    with pytest.raises(Problem) as caught:
        render("f.py", source, patches)
    problem = caught.value
    assert says in problem.message
    assert (problem.file, problem.line, problem.code) == ("f.py", line, 2)
    assert column is ... or problem.column == column
    assert problem.hint


@pytest.mark.parametrize(
    "source, lines",
    [
        (b"x = old\r", {1}),
        (b"def f():\n    old()\n\n\n   \n", {3, 4, 5}),
    ],  # of blank lines any may be the lost one
    ids=["lone cr", "spaces at the end"],
)
def test_file_that_libcst_would_print_otherwise_is_refused_rather_than_changed(source, lines):
    assert cst.parse_module(source).bytes != source  # else this LibCST no longer needs the care
    with pytest.raises(Problem) as caught:
        render("f.py", source, [modernise()])
    assert caught.value.code == 2
    assert caught.value.line in lines


def test_bad_byte_in_a_comment_of_the_second_line_is_found_there():
    # Python itself looks for an encoding cookie in these two lines, and stumbles over it in another
    # way.
    with pytest.raises(Problem) as caught:
        render("f.py", b"# a\n# \x80\n", [modernise()])
    assert (caught.value.line, caught.value.code) == (2, 2)


# Properties

UNRELATED = [
    "x = 1",
    "import a, b as c",
    "@d\ndef g(a, *b, **c): pass",
    "class C:\n    '''Doc.'''\n    y = [ 1,2 ]",
    "# a comment: ä",
    "",
    "for i in range(3):\n    print(i) ; print( i )\nelse:\n    pass",
    "with open('x') as h, i:\n\n    z = h\n",
    "s = f'{x!r:>{y}} {{}}'",
    "try:\n    k()\nexcept (A, B) as e:\n    raise",
    "async def h():\n    await k\n    return lambda *a: (yield_)",
    "u = '''\nold\n'''.strip()",  # a needle, and no call
    "x: int = 3;   y = 4",
]
blocks = st.lists(st.sampled_from(UNRELATED), max_size=8)
newlines = st.sampled_from(["\n", "\r\n"])
heads = st.sampled_from([b"", b"\xef\xbb\xbf", b"#!/bin/python\n", b"# coding: utf-8\n"])
examples = settings(deadline=None, max_examples=40)


def joined(parts, newline="\n", head=b"") -> bytes:
    return head + "".join(f"{part}\n" for part in parts).replace("\n", newline).encode()


@given(blocks, newlines, heads, st.booleans())
@examples
def test_file_without_a_site_keeps_every_byte(parts, newline, head, final):
    source = joined(parts, newline, head)
    source = source if final else source.removesuffix(newline.encode())
    outcome, after = judge(source)
    assert after == source
    assert (outcome.verdict, outcome.found) == (Verdict.STALE, {})


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=40))
@settings(deadline=None, max_examples=100)
def test_any_text_in_comments_and_strings_keeps_every_byte(text):
    line = re.sub(r"[\n\\']", " ", text)
    source = f"# {line}\ns = '{line}'\n".encode() + BODY
    assert judge(source)[1] == source.replace(b"old( 1", b"new( 1")


@given(blocks, blocks, newlines, heads, st.integers(0, 3))
@examples
def test_second_pass_over_the_result_finds_nothing(above, below, newline, head, calls):
    body = "def f():\n    pass\n" + "    x = old(old_(), 'old')  # old()\n" * calls
    source = joined([*above, body, *below], newline, head)
    patch = modernise({"f": calls} if calls else {"f": 1})
    once = judge(source, patch)[1]
    again = patch.fresh()
    printer = Printer()
    assert printer.bytes(apply_once(parse("f.py", once, printer), again, printer)) == once
    assert again.hits == []


CASES = ["    old()", "    new()", "    pass", "    old()\n    old()", "    old()\n    new()"]


@given(st.sampled_from(CASES), blocks, blocks, newlines, heads)
@examples
def test_verdict_does_not_depend_on_what_stands_above_and_below(body, above, below, newline, head):
    alone, changed = judge(f"def f():\n{body}\n")
    outcome, after = judge(joined([*above, f"def f():\n{body}", *below], newline, head))
    assert (outcome.verdict, outcome.found, outcome.detail) == (
        alone.verdict,
        alone.found,
        alone.detail,
    )
    assert after == joined([*above, changed.decode().removesuffix("\n"), *below], newline, head)


@given(
    st.sampled_from(CASES),
    st.sampled_from(["y = 1", "g(1)", "if g: pass", "s = 'old()'", "# old", "del y"]),
)
@examples
def test_verdict_does_not_depend_on_unrelated_statements_beside_a_site(body, statement):
    alone, _ = judge(f"def f():\n{body}\n")
    outcome, _ = judge(f"def f():\n    {statement}\n{body}\n    {statement}\n    return\n")
    assert (outcome.verdict, outcome.found, outcome.detail) == (
        alone.verdict,
        alone.found,
        alone.detail,
    )


@given(
    blocks,
    st.lists(
        st.sampled_from(["old()", "g(old (1),\n      old())", "'old()'", "new_()"]), max_size=5
    ),
)
@examples
def test_changed_lines_are_those_that_hold_a_call_and_no_others(above, calls):
    body = "".join(f"    {call}\n" for call in calls)
    source = joined([*above, "def f():\n    pass\n" + body])
    hits = sum({"old()": 1, "g(old (1),\n      old())": 2}.get(call, 0) for call in calls)
    after = judge(source, modernise({"f": hits or 1}))[1]
    before_lines, after_lines = source.split(b"\n"), after.split(b"\n")
    assert len(before_lines) == len(after_lines)
    for before, now in zip(before_lines, after_lines, strict=True):
        assert now == (before if b"'" in before else re.sub(rb"\bold( ?\()", rb"new\1", before))
