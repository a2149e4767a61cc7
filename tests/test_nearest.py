"""What has become of the code that a stale patch edits."""

import pytest
from rendering import SCRIPTS, make
from test_variants import VARIANTS, is_stale, patches_of, scripts, whole

from patcher.build.nearest import Statements, shown, traces

FLATTEN = "    n = hit[:k].view(-1).sum()\n"


def found(old: str, new: str, patch=None) -> list:
    return traces(
        Statements("a.py", old.encode()),
        Statements("a.py", new.encode()),
        patch or make("reshape_topk"),
    )


def told(finding) -> tuple:
    def place(statement):
        return statement and (statement.function, statement.line, statement.text.strip())

    return finding.fate, place(finding.old), place(finding.new)


def test_changed_statement_is_found_in_its_function():
    old = f"def f():\n{FLATTEN}"
    new = f"def f():\n    x = 1\n{FLATTEN.replace('view(-1)', 'flatten()')}    return n\n"
    assert [told(finding) for finding in found(old, new)] == [
        ("changed", ("f", 2, "n = hit[:k].view(-1).sum()"), ("f", 3, "n = hit[:k].flatten().sum()"))
    ]


def test_function_of_the_same_name_comes_before_a_likelier_statement_elsewhere():
    old = f"def f():\n{FLATTEN}"
    new = (
        "def g():\n    n = hit[:k].view(0).sum()\n\n\ndef f():\n    n = hits[:k].flatten().sum(0)\n"
    )
    assert [told(finding)[2][:2] for finding in found(old, new)] == [("f", 6)]


def test_renamed_function_is_found_by_what_stands_in_it():
    old = f"def f():\n{FLATTEN}"
    new = f"def topk():\n{FLATTEN.replace('view(-1)', 'flatten()')}"
    assert [told(finding)[2][:2] for finding in found(old, new)] == [("topk", 2)]


def test_statement_of_a_renamed_function_that_the_patch_would_edit_is_no_finding():
    # What the verdict itself says is enough: it is the function that has another name.
    old, new = f"def f():\n{FLATTEN}", f"def topk():\n{FLATTEN}"
    assert found(old, new) == []


def test_statement_that_stands_in_both_texts_is_never_what_another_one_has_become():
    old = "def f():\n    n = hit[:k].view(-1).sum()\n    m = hit[:k].flatten().sum()\n"
    new = "def f():\n    m = hit[:k].flatten().sum()\n"
    assert [told(finding) for finding in found(old, new)] == [
        ("gone", ("f", 2, "n = hit[:k].view(-1).sum()"), None)
    ]


def test_statement_that_was_not_edited_before_is_new():
    old = f"def f():\n{FLATTEN}"
    new = f"def f():\n{FLATTEN}    m = hit[:j].view(-1).any()\n"
    assert [told(finding) for finding in found(old, new)] == [
        ("new", None, ("f", 3, "m = hit[:j].view(-1).any()"))
    ]


def test_one_of_two_edits_in_a_statement_that_is_gone_is_found():
    old = "def f():\n    n = hit[:1].view(-1) + hit[:5].view(-1)\n"
    new = "def f():\n    n = hit[:1].view(-1) + hit[:5].flatten()\n"
    assert [told(finding)[0] for finding in found(old, new)] == ["changed"]


def test_only_what_stands_in_its_place_may_look_altogether_different():
    old = "def f():\n    a()\n    gpus = [0, 1, 2, 3]\n    b()\n"
    new = "def f():\n    a()\n    for device in every(device): use(device)\n    b()\n"
    patch = make("configurable_gpus", gpus="1")
    assert [told(finding)[2] for finding in found(old, new, patch)] == [
        ("f", 3, "for device in every(device): use(device)")
    ]
    assert [
        told(finding)[0]
        for finding in found(old, new.replace("    b()\n", "    x()\n    y()\n"), patch)
    ] == ["gone"]


def test_layout_comments_and_line_endings_are_no_change():
    old = f"def f():\n    # all\n{FLATTEN}"
    new = "def f():\r\n    n = hit[:k].view(\r\n        -1).sum()  # some\r\n"
    assert found(old, new) == []


def test_other_quotes_and_wraps_all_over_do_not_hide_what_has_changed():
    old = "def f():\n    a(b='c', d=1)\n    n = hit[:k].view(-1).sum('x')\n    e['f'] = g\n"
    new = 'def f():\n    a(\n        b="c", d=1,\n    )\n'
    new += '    n = hit[:k].flatten().sum("x")\n    e["f"] = g\n'
    assert [told(finding)[2] for finding in found(old, new)] == [
        ("f", 5, 'n = hit[:k].flatten().sum("x")')
    ]


def test_methods_and_heads_of_compound_statements_have_their_own_places():
    text = (
        "class A:\n    def f(self):\n        for i in hit[:k].view(-1):\n"
        "            # each\n            g(i)\n        else:\n            h()\n"
    )
    (finding,) = found(text, text.replace("view(-1)", "flatten()"))
    assert told(finding) == (
        "changed",
        ("A.f", 3, "for i in hit[:k].view(-1):"),
        ("A.f", 3, "for i in hit[:k].flatten():"),
    )


def test_excerpt_shows_only_the_lines_of_a_long_statement_that_differ():
    old = "n = f(\n    1,\n    2,\n    3,\n    hit[:k].view(-1),\n    5,\n    6,\n    7,\n)\n"
    lines = shown(
        found(old, old.replace("view(-1)", "flatten()").replace("7,", "8,")), "old.py", "new.py"
    )
    assert lines == [
        "old.py:1 in <module>, now new.py:1:",
        "      3,",
        "-     hit[:k].view(-1),",
        "+     hit[:k].flatten(),",
        "      5,",
        "      6,",
        "-     7,",
        "+     8,",
        "  )",
    ]


def test_many_findings_are_cut_short():
    old = "".join(f"def f{i}():\n    n{i} = hit[:{i}].view(-1)\n" for i in range(20))
    lines = shown(found(old, "x = 1\n"), "old.py", "new.py")
    assert lines[-1] == "and 14 more"
    assert lines[0] == "old.py:2 in f0, gone: nothing in new.py is like it:"


# On the upstreams to come: what each stale patch is shown, as the lines with - and +

EXCERPTS = {
    "args.local_rank is called gpu too, its option as ever": {"any_launcher": "+ dest='gpu',"},
    "nprocs is called ngpus_per_node": {
        "world_size": "- args.nprocs = torch.cuda.device_count()\n"
        "+ args.ngpus_per_node = torch.cuda.device_count()"
    },
    "no barrier in validate": {"exact_validation": "- dist.barrier()"},
    "no barrier in train and validate": {
        "train_meters": "- dist.barrier()\n+ pass",
        "exact_validation": "- dist.barrier()\n+ pass",
    },
    "the GPUs are all there are": {
        "configurable_gpus": "- gpus = [0, 1, 2, 3]\n"
        "+ gpus = list(range(torch.cuda.device_count()))"
    },
}


@pytest.mark.parametrize("label", [label for label in VARIANTS if is_stale(label)])
def test_stale_patch_is_shown_what_has_changed_and_nothing_else(label):
    excerpts = {}
    for name, source in scripts(label).items():
        old, new = Statements(name, SCRIPTS[name]), Statements(name, source)
        outcomes = whole(name, source).outcomes
        stale = {
            o.patch for o in outcomes if o.verdict.value == "stale" and not o.refused
        }  # a refusal says why itself
        for patch in patches_of("standard"):
            if patch.slug() in stale:
                lines = shown(traces(old, new, patch), "old.py", "new.py")
                signed = [f"{line[0]} {line[1:].strip()}" for line in lines if line[0] in "+-"]
                excerpts[patch.slug()] = "\n".join(signed)
    assert excerpts == EXCERPTS.get(label, {})
