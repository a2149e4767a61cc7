"""The first ring: every patch on its own examples."""

import ast
import io
import re
import statistics
import tokenize
from collections import Counter

import pytest
from conftest import REPO, load

from patcher.build.project import Project, Request
from patcher.core.engine import Printer, Verdict, apply_once, parse, render

PROJECT = Project(REPO)
NAMES = list(dict.fromkeys(name for series in PROJECT.all_series().values() for name in series))


def make(name, **options):
    """A patch of this repository, whichever project an earlier test has read; those that it may need are before it."""
    return PROJECT.configured(
        {earlier: {} for earlier in NAMES[: NAMES.index(name)]} | {name: options}
    )[-1]


def once(source: bytes, patch) -> bytes:
    """What the patch itself makes of an example, in which no parser needs to be."""
    printer = Printer()
    patch.parser_name = lambda: "parser"
    return printer.bytes(apply_once(parse("example.py", source, printer), patch, printer))


def built(source: bytes, patch, sites=None) -> bytes:
    """What a series of this patch alone makes of a script, with imports, options and functions."""
    patch.sites = {"script.py": sites or {"main": 1}}
    result = render("script.py", source, [patch], PROJECT.support())
    assert not result.stale, result.outcomes
    return result.after


def comments(source: bytes) -> Counter:
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.COMMENT)


@pytest.mark.parametrize("series", PROJECT.all_series())
@pytest.mark.parametrize("shape", ["", "_a.py.txt", "_b.py.txt"])
def test_no_comment_of_upstream_is_lost_in_silence(series, shape):
    """T10: on upstream/ and on each of tests/shapes, what is gone is what the patches list, and no more is listed."""
    lost, drops = Counter(), Counter()
    for name in ("dataparallel.py", "distributed.py"):
        folder, file = ("tests/shapes", name.replace(".py", shape)) if shape else ("upstream", name)
        source, patches = (REPO / folder / file).read_bytes(), PROJECT.patches_of(Request(series))
        rendered = render(name, source, patches, PROJECT.support())
        assert not rendered.stale
        lost += comments(source) - comments(rendered.after)
        drops += Counter(
            {comment for patch in patches if name in patch.sites for comment in patch.drops}
        )
    assert lost.keys() <= drops.keys()
    if not shape:
        assert lost.keys() == drops.keys()


FORMS = {
    "lf": lambda text: text.encode(),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "tabs": lambda text: re.sub(
        "^(    )+", lambda m: "\t" * (len(m[0]) // 4), text, flags=re.MULTILINE
    ).encode(),
    "no final newline": lambda text: text.removesuffix("\n").encode(),
}


def examples(attribute: str) -> list:
    """(patch, form, example) for each patch and example, in each form that makes a difference to it."""
    cases = []
    for name in NAMES:
        for number, example in enumerate(getattr(type(make(name)), attribute)):
            text = example if isinstance(example, str) else example[0]
            for form, shape in FORMS.items():
                if form == "lf" or shape(text) != FORMS["lf"](text):
                    cases.append(pytest.param(name, form, example, id=f"{name}-{number}-{form}"))
    return cases


@pytest.mark.parametrize("name, form, example", examples("changes"))
def test_example_becomes_what_the_patch_says(name, form, example):
    before, after, *options = example
    patch = make(name, **(options[0] if options else {}))
    result = once(FORMS[form](before), patch)
    assert patch.hits
    assert result.decode() == FORMS[form](after).decode()


@pytest.mark.parametrize("name, form, example", examples("changes"))
def test_second_run_changes_nothing(name, form, example):
    before, _, *options = example
    result = once(FORMS[form](before), make(name, **(options[0] if options else {})))
    again = make(name, **(options[0] if options else {}))
    assert once(result, again) == result
    assert again.hits == []


@pytest.mark.parametrize("name, form, example", examples("changes"))
def test_done_is_absent_before_and_present_after(name, form, example):
    before, _, *options = example
    first, second = (make(name, **(options[0] if options else {})) for _ in range(2))
    result = once(FORMS[form](before), first)
    once(result, second)
    assert not first.already_done
    assert second.already_done


@pytest.mark.parametrize("name, form, source", examples("leaves"))
def test_look_alike_stays_as_it_is(name, form, source):
    patch = make(name)
    assert once(FORMS[form](source), patch) == FORMS[form](source)
    assert patch.hits == []


@pytest.mark.parametrize("name", NAMES)
def test_patch_has_examples_of_what_it_changes_and_leaves(name):
    patch = type(make(name))
    assert patch.changes
    assert patch.leaves
    for before, after, *_ in patch.changes:
        assert before != after
        compile(before, "before", "exec")
        compile(after, "after", "exec")


@pytest.mark.parametrize("name", NAMES)
def test_patch_says_in_one_sentence_why_it_is_there(name):
    patch = make(name)
    assert re.fullmatch(r"[A-Z].* .*[^.]\.", patch.summary())
    assert re.fullmatch(r"https://\S+", patch.origin)


def length(name: str) -> int:
    """The lines of a patch, its examples among them."""
    return (REPO / f"patches/{name}.py").read_bytes().count(b"\n")


@pytest.mark.parametrize("name", NAMES)
def test_patch_fits_on_one_screen(name):
    assert length(name) < 100


def test_patches_are_short():
    assert statistics.median(map(length, NAMES)) <= 60


@pytest.mark.parametrize("name", NAMES)
def test_needles_occur_in_every_example_before_and_after(name):
    # A statement without a needle is never visited, so a needle too few makes a patch blind for its own result.
    patch = type(make(name))
    for before, after, *_ in patch.changes:
        assert any(needle in before.encode() for needle in patch.needles)
        assert any(needle in after.encode() for needle in patch.needles)


def test_every_patch_in_the_folder_is_in_a_series():
    assert {path.stem for path in (REPO / "patches").glob("*.py")} - {"__init__"} == set(NAMES)


def test_every_module_that_patches_name_is_there():
    # A name that a module lacks would show only when the built script comes to it.
    support = {
        name: _names(source) for name, source in PROJECT.support().items() if name != "run"
    }  # a variable there
    for name in NAMES:
        texts = [text for example in type(make(name)).changes for text in example[:2]]
        for node in (node for text in texts for node in ast.walk(ast.parse(text))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in support
            ):
                assert node.attr in support[node.value.id], f"{name}: {ast.unparse(node)}"


def _names(source: bytes) -> set[str]:
    return {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }


# local_rank_from_env


def test_fallback_keeps_the_default_that_the_script_had():
    patch = make("local_rank_from_env", fallback=True)
    result = once(b"import os\np.add_argument('--local_rank', type=int, default=-7)\n", patch)
    assert result == (
        b"import os\np.add_argument('--local_rank', type=int, default=int(os.environ.get(\"LOCAL_RANK\", -7)))\n"
    )


@pytest.mark.parametrize(
    "value, fallback", [("true", True), ("false", False), (True, True), (False, False)]
)
def test_fallback_is_read_from_a_word_or_a_bool(value, fallback):
    assert make("local_rank_from_env", fallback=value).options == {"fallback": fallback}


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b'"""About."""\n',
        b"#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n",
        b"# A licence.\n\n# About x.\n",
        b'"""About."""\nfrom __future__ import annotations\n',
    ],
)
def test_missing_import_goes_where_an_import_may_stand(head):
    option = b"p = ArgumentParser()\np.add_argument('--local_rank', default=0)\n"
    result = built(head + option, make("local_rank_from_env"), {"<module>": 1})
    assert result == head + b"import os\n" + option.replace(
        b"=0", b'=int(os.environ["LOCAL_RANK"])'
    )


# configurable_gpus: what is written into the script where it stands alone

SCRIPT = """\
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument('-x')


def main():
    args = parser.parse_args()
    gpus = [0, 1]
    return gpus
"""


def outcome_of(source: str, **options):
    """What the patch alone says to a script."""
    return render(
        "dataparallel.py",
        source.encode(),
        [make("configurable_gpus", **options)],
        PROJECT.support(),
    ).outcomes[0]


def run_main(source: str, tmp_path, monkeypatch, *argv):
    """What `main()` of the rewritten script returns, with four GPUs."""
    (tmp_path / "script.py").write_bytes(built(source.encode(), make("configurable_gpus")))
    module = load(tmp_path / "script.py")
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr("sys.argv", ["script.py", *argv])
    return module.main()


@pytest.mark.parametrize("name", ["parser", "p"])
def test_rewritten_script_takes_gpus(name, tmp_path, monkeypatch):
    assert run_main(SCRIPT.replace("parser", name), tmp_path, monkeypatch, "--gpus", "3,1") == [
        3,
        1,
    ]


def test_parsed_arguments_of_another_function_are_not_used(tmp_path, monkeypatch):
    # `opt` does not exist in main(), and main() has names of its own.
    other = "def other():\n    opt = parser.parse_args()\n\n\ndef main():\n    args = parser.parse_args()\n"
    source = SCRIPT.replace("def main():\n    args = parser.parse_args()\n", other)
    source = source.replace(
        "    return gpus\n", "    return gpus\n\n\ndef last():\n    opt = parser.parse_args()\n"
    )
    assert run_main(source, tmp_path, monkeypatch, "--gpus", "2") == [2]


def test_list_in_a_function_that_parses_nothing_is_not_rewritten_by_another_functions_name():
    source = b"p = ArgumentParser()\np.add_argument('-x')\ndef other():\n    opt = p.parse_args()\n"
    source += b"def main():\n    gpus = [0, 1]\n"
    assert once(source, make("configurable_gpus")) == source


def test_list_above_the_parsed_arguments_is_not_rewritten():
    # There the arguments do not exist yet.
    lines = ["    args = parser.parse_args()\n", "    gpus = [0, 1]\n"]
    source = SCRIPT.replace("".join(lines), "".join(lines[::-1]))
    assert source != SCRIPT
    assert once(source.encode(), make("configurable_gpus")) == source.encode()


@pytest.mark.parametrize("optional", [False, True])
def test_script_that_has_a_gpus_option_is_refused(optional):
    # A second one makes argparse raise, and then not even --help works.
    outcome = outcome_of(SCRIPT.replace("'-x'", "'--gpus'"), optional=optional)
    assert (outcome.verdict, outcome.line, outcome.detail) == (
        Verdict.STALE,
        4,
        "the script has an option --gpus already",
    )


@pytest.mark.parametrize(
    "optional, name", [(False, "gpu_ids"), (False, "select_gpus"), (True, "gpu_list")]
)
def test_script_that_has_an_inserted_name_is_refused(optional, name):
    """T2: whichever comes last would be called by both."""
    outcome = outcome_of(SCRIPT + f"\n\ndef {name}(spec):\n    return 'mine'\n", optional=optional)
    assert (outcome.verdict, outcome.line, outcome.detail) == (
        Verdict.STALE,
        13,
        f"the script has a {name} of its own",
    )


def test_options_of_a_group_do_not_make_the_group_the_parser(tmp_path, monkeypatch, capsys):
    # A group takes options like a parser, but cannot end the program like one.
    group = "group = parser.add_argument_group('more')\ngroup.add_argument('-y')\n"
    source = SCRIPT.replace("parser.add_argument('-x')\n", "parser.add_argument('-x')\n" + group)
    with pytest.raises(SystemExit) as ended:
        run_main(source, tmp_path, monkeypatch, "--gpus", "7")
    assert ended.value.code == 2
    assert "GPU 7 was asked for" in capsys.readouterr().err


@pytest.mark.parametrize("late", ["", "import late\n", "def late():\n    pass\n"])
def test_functions_are_inserted_above_their_use_wherever_that_is(late):
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('-x')\na = p.parse_args()\ngpus = [0, 1]\n"
    result = built((source + late).encode(), make("configurable_gpus"), {"<module>": 1})
    assert (
        result.index(b"def gpu_ids")
        < result.index(b"def select_gpus")
        < result.index(b"= select_gpus(")
    )
    assert result.index(b'"--gpus"') < result.index(b"\na = p.parse_args")


def test_script_with_its_only_function_in_an_if_gets_the_functions_too():
    source = (
        SCRIPT.replace("def main", "if parser:\n  def main")
        .replace("    args", "      args")
        .replace("    gpus", "      gpus")
    )
    result = built(source.replace("    return", "      return").encode(), make("configurable_gpus"))
    assert (
        result.index(b"def gpu_ids")
        < result.index(b"def select_gpus")
        < result.index(b"= select_gpus(")
    )


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_inserted_functions_are_the_tested_ones_word_for_word(ending):
    result = built(SCRIPT.replace("\n", ending).encode(), make("configurable_gpus"))
    source = (REPO / "patches/support/gpu_list.py").read_text()
    functions = source[source.index("def gpu_ids(") :]
    assert ("\n\n" + functions).replace("\n", ending).encode() in result
    assert not re.search(rb"[^\r]\n" if ending == "\r\n" else rb"\r", result)


def test_optional_gpus_leave_the_script_to_its_folder():
    result = built(SCRIPT.encode(), make("configurable_gpus", optional=True))
    assert result == (
        b"""\
import argparse
import torch

try:
    from support import gpu_list
except ImportError as error:
    raise SystemExit('{}: needs the folder support/ that was built with it: {}'.format(
        __file__, error))
parser = argparse.ArgumentParser()
parser.add_argument('-x')
gpu_list.add_options(parser)


def main():
    args = parser.parse_args()
    gpus = gpu_list.select_gpus(args.gpus, parser, torch.cuda.device_count(), optional=True)
    return gpus
"""
    )


@pytest.mark.parametrize(
    "line", ["gpus = None", "gpus = []", "devices = torch.cuda.device_count()"]
)
def test_any_other_value_of_that_name_does_not_pass_for_the_edit(line):
    # OBSOLETE tells a human to delete the patch; here nobody can choose anything.
    assert outcome_of(SCRIPT.replace("gpus = [0, 1]", line)).verdict is Verdict.STALE


def test_unrelated_variable_beside_the_list_does_not_make_the_patch_stale():
    source = SCRIPT.replace(
        "    gpus = [0, 1]\n", "    devices = torch.cuda.device_count()\n    gpus = [0, 1]\n"
    )
    assert outcome_of(source).verdict is Verdict.CLEAN


def test_list_that_is_already_the_one_asked_for_is_done():
    assert outcome_of(SCRIPT, gpus="0-1").verdict is Verdict.OBSOLETE


@pytest.mark.parametrize("gpus", ["", "0,0", "x", "2-1"])
def test_bad_list_is_refused_when_the_patch_is_made(gpus):
    with pytest.raises(Exception, match="expected GPU ids|named twice") as caught:
        make("configurable_gpus", gpus=gpus)
    assert (caught.value.code, caught.value.file) == (
        1,
        "patches/__init__.py",
    )  # as in a series; --set is bad usage
