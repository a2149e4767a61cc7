"""The first ring: every patch on its own examples, and the code that patches insert."""

import ast
import importlib
import re

import pytest
from conftest import REPO, load
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.engine import Printer, Verdict, apply_once, parse, render
from patcher.project import Project
from patches.added.gpu_ids import gpu_ids

PROJECT = Project(REPO)
NAMES = list(dict.fromkeys(name for series in PROJECT.all_series().values() for name in series))


def make(name, **options):
    """A patch of this repository, whichever project an earlier test has read."""
    return PROJECT.configured({name: options})[0]


def once(source: bytes, patch) -> bytes:
    printer = Printer()
    return printer.bytes(apply_once(parse("example.py", source, printer), patch, printer))


FORMS = {
    "lf": lambda text: text.encode(),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "tabs": lambda text: re.sub("^(    )+", lambda m: "\t" * (len(m[0]) // 4), text, flags=re.M).encode(),
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


def expected_text(after: str, form: str) -> re.Pattern:
    """What the second text of an example stands for: `...` on a line is one or more inserted lines."""
    parts = [re.escape(FORMS[form](part)) for part in after.split("...\n")]
    if form == "no final newline":  # of a part that is not the last, the newline does end a line
        parts = [re.escape(part.encode()) for part in after.removesuffix("\n").split("...\n")]
    newline = rb"\r\n" if form == "crlf" else rb"\n"
    return re.compile((b"(?:[^\r\n]*" + newline + b")+").join(parts))


@pytest.mark.parametrize("name, form, example", examples("changes"))
def test_example_becomes_what_the_patch_says(name, form, example):
    before, after, *options = example
    patch = make(name, **(options[0] if options else {}))
    result = once(FORMS[form](before), patch)
    assert patch.hits
    assert expected_text(after, form).fullmatch(result), result.decode()


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


@pytest.mark.parametrize("name", NAMES)
def test_patch_fits_on_one_screen(name):
    assert (REPO / f"patches/{name}.py").read_bytes().count(b"\n") < 80


@pytest.mark.parametrize("name", NAMES)
def test_needles_occur_in_every_example_before_and_after(name):
    # A statement without a needle is never visited, so a needle too few makes a patch blind for its own result.
    patch = type(make(name))
    for before, after, *_ in patch.changes:
        assert any(needle in before.encode() for needle in patch.needles)
        assert any(needle in after.encode() for needle in patch.needles)


def test_every_patch_in_the_folder_is_in_a_series():
    assert {path.stem for path in (REPO / "patches").glob("*.py")} - {"__init__"} == set(NAMES)


# local_rank_from_env


def test_fallback_keeps_the_default_that_the_script_had():
    patch = make("local_rank_from_env", fallback=True)
    result = once(b"import os\np.add_argument('--local_rank', type=int, default=-7)\n", patch)
    assert result == (
        b"import os\np.add_argument('--local_rank', type=int, default=int(os.environ.get(\"LOCAL_RANK\", -7)))\n"
    )


@pytest.mark.parametrize("value, fallback", [("true", True), ("false", False), (True, True), (False, False)])
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
    result = once(head + option, make("local_rank_from_env"))
    compile(result, "script", "exec")
    assert result == head + b"import os\n" + option.replace(b"=0", b'=int(os.environ["LOCAL_RANK"])')


# configurable_gpus

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


def run_main(source: bytes, tmp_path, monkeypatch, *argv):
    """What `main()` of the rewritten script returns, with four GPUs."""
    (tmp_path / "script.py").write_bytes(once(source, make("configurable_gpus")))
    module = load(tmp_path / "script.py")
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr("sys.argv", ["script.py", *argv])
    return module.main()


def test_rewritten_script_takes_gpus(tmp_path, monkeypatch):
    assert run_main(SCRIPT.encode(), tmp_path, monkeypatch, "--gpus", "3,1") == [3, 1]


def test_parsed_arguments_of_another_function_are_not_used(tmp_path, monkeypatch):
    # `opt` does not exist in main(), and main() has names of its own.
    other = "def other():\n    opt = parser.parse_args()\n\n\ndef main():\n    args = parser.parse_args()\n"
    source = SCRIPT.replace("def main():\n    args = parser.parse_args()\n", other)
    source = source.replace("    return gpus\n", "    return gpus\n\n\ndef last():\n    opt = parser.parse_args()\n")
    assert run_main(source.encode(), tmp_path, monkeypatch, "--gpus", "2") == [2]


def test_list_in_a_function_that_parses_nothing_is_not_rewritten_by_another_functions_name():
    source = b"p = ArgumentParser()\np.add_argument('-x')\ndef other():\n    opt = p.parse_args()\n"
    source += b"def main():\n    gpus = [0, 1]\n"
    assert b"select_gpus(opt." not in once(source, make("configurable_gpus"))


def test_list_above_the_parsed_arguments_is_not_rewritten():
    # There the arguments do not exist yet.
    lines = ["    args = parser.parse_args()\n", "    gpus = [0, 1]\n"]
    source = SCRIPT.replace("".join(lines), "".join(lines[::-1]))
    assert source != SCRIPT
    assert once(source.encode(), make("configurable_gpus")) == source.encode()


def test_script_that_has_a_gpus_option_gets_no_second_one():
    # argparse raises at the second, and then not even --help works.
    source = SCRIPT.replace("'-x'", "'--gpus'")
    assert once(source.encode(), make("configurable_gpus")).count(b"'--gpus'") == 1


def test_script_that_has_a_function_of_an_inserted_name_is_not_given_a_second_one():
    # Whichever comes last would be called by both.
    source = SCRIPT + "\n\ndef gpu_ids(spec):\n    return 'mine'\n"
    outcome = render("dataparallel.py", source.encode(), [make("configurable_gpus")]).outcomes[0]
    assert outcome.verdict is Verdict.STALE


def test_options_of_a_group_do_not_make_the_group_the_parser(tmp_path, monkeypatch, capsys):
    # A group takes options like a parser, but cannot end the program like one.
    group = "group = parser.add_argument_group('more')\ngroup.add_argument('-y')\n"
    source = SCRIPT.replace("parser.add_argument('-x')\n", "parser.add_argument('-x')\n" + group)
    with pytest.raises(SystemExit) as ended:
        run_main(source.encode(), tmp_path, monkeypatch, "--gpus", "7")
    assert ended.value.code == 2
    assert "GPU 7 was asked for" in capsys.readouterr().err


def test_functions_are_inserted_above_their_use_in_a_script_without_functions():
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('-x')\na = p.parse_args()\ngpus = [0, 1]\n"
    for late in ("", "import late\n"):
        result = once((source + late).encode(), make("configurable_gpus"))
        assert result.index(b"def gpu_ids") < result.index(b"def select_gpus") < result.index(b"= select_gpus(")


@pytest.mark.parametrize(
    "source",
    [
        "p = ArgumentParser()\np.add_argument('-x')\na = p.parse_args()\ngpus = [0, 1]\n",
        "p = ArgumentParser()\np.add_argument('-x')\nif p:\n    def main():\n"
        "        a = p.parse_args()\n        gpus = [0, 1]\n",
    ],
    ids=["no function at all", "function in an if"],
)
def test_script_without_a_top_level_function_does_not_crash_the_patch(source):
    result = once(source.encode(), make("configurable_gpus"))
    compile(result, "script", "exec")
    # Either the whole edit, or none of it.
    assert (b"def select_gpus" in result) == (b"= select_gpus" in result)


@pytest.mark.parametrize("name", ["p", "parser", "argument_parser"])
def test_inserted_option_is_aligned_to_the_parenthesis(name):
    result = once(SCRIPT.replace("parser.", f"{name}.").encode(), make("configurable_gpus")).decode()
    option = re.search(rf"^{name}\.add_argument\('--gpus',\n((?: +.*\n)+)", result, flags=re.M)
    assert {len(line) - len(line.lstrip()) for line in option[1].splitlines()} == {len(f"{name}.add_argument(")}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_inserted_functions_are_the_tested_ones_word_for_word(ending):
    result = once(SCRIPT.replace("\n", ending).encode(), make("configurable_gpus"))
    for file, name in (("gpu_ids.py", "gpu_ids"), ("gpus.py", "select_gpus")):
        source = (REPO / "patches/added" / file).read_text()
        function = source[source.index(f"def {name}(") :]
        assert ("\n\n" + function).replace("\n", ending).encode() in result
    assert not re.search(rb"[^\r]\n" if ending == "\r\n" else rb"\r", result)


@pytest.mark.parametrize("line", ["gpus = None", "gpus = []", "devices = torch.cuda.device_count()"])
def test_any_other_value_of_that_name_does_not_pass_for_the_edit(line):
    # OBSOLETE tells a human to delete the patch; here nobody can choose anything.
    source = SCRIPT.replace("gpus = [0, 1]", line).encode()
    outcome = render("dataparallel.py", source, [make("configurable_gpus")]).outcomes[0]
    assert outcome.verdict is Verdict.STALE


def test_unrelated_variable_beside_the_list_does_not_make_the_patch_stale():
    source = SCRIPT.replace("    gpus = [0, 1]\n", "    devices = torch.cuda.device_count()\n    gpus = [0, 1]\n")
    outcome = render("dataparallel.py", source.encode(), [make("configurable_gpus")]).outcomes[0]
    assert outcome.verdict is Verdict.CLEAN, outcome


def test_list_that_is_already_the_one_asked_for_is_done():
    outcome = render("dataparallel.py", SCRIPT.encode(), [make("configurable_gpus", gpus="0-1")]).outcomes[0]
    assert outcome.verdict is Verdict.OBSOLETE


@pytest.mark.parametrize("gpus", ["", "0,0", "x", "2-1"])
def test_bad_list_is_refused_when_the_patch_is_made(gpus):
    with pytest.raises(Exception, match="expected GPU ids|named twice") as caught:
        make("configurable_gpus", gpus=gpus)
    assert (caught.value.code, caught.value.file) == (1, "patches/__init__.py")  # as in a series; --set is bad usage


# patches/added


@pytest.mark.parametrize(
    "spec, ids",
    [
        ("0", [0]),
        ("0,2", [0, 2]),
        ("2,0", [2, 0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-3,7", [0, 1, 2, 3, 7]),
        ("5,1-2", [5, 1, 2]),
        ("4-4", [4]),
        (" 1 , 2 ", [1, 2]),
        ("1023", [1023]),
    ],
)
def test_ids_and_ranges_are_read_in_the_order_given(spec, ids):
    assert gpu_ids(spec) == ids


@pytest.mark.parametrize(
    "spec", ["", ",", "1,", ",1", "a", "-1", "1-", "3-1", "1-2-3", "0x1", "1.5", "1 2", "1024", "0-1024", "²", "0;1"]
)
def test_what_is_no_list_of_ids_is_refused_and_quoted(spec):
    with pytest.raises(ValueError, match="such as 0,2 or 0-3,7") as caught:
        gpu_ids(spec)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize("spec, twice", [("0,0", 0), ("0-2,1", 1), ("3,1-2,2-3", 2)])
def test_id_that_is_named_twice_is_refused(spec, twice):
    with pytest.raises(ValueError, match=f"^GPU {twice} is named twice") as caught:
        gpu_ids(spec)
    assert repr(spec) in str(caught.value)


@given(st.lists(st.integers(0, 1023), min_size=1, max_size=20, unique=True))
@settings(deadline=None, max_examples=50)
def test_every_list_of_distinct_ids_is_read_back(ids):
    assert gpu_ids(",".join(map(str, ids))) == ids


@given(st.text(alphabet="0123456789,- x", max_size=12))
@settings(deadline=None, max_examples=200)
def test_any_text_gives_distinct_ids_or_a_value_error(spec):
    try:
        ids = gpu_ids(spec)
    except ValueError:
        return
    assert len(set(ids)) == len(ids) > 0
    assert all(0 <= i < 1024 for i in ids)


@pytest.fixture
def select_gpus(monkeypatch):
    """`select_gpus` called with so many GPUs visible."""
    torch = pytest.importorskip("torch")
    PROJECT.all_series()  # an earlier test may have imported the patches of a folder that is gone
    added = importlib.import_module("patches.added.gpus")

    def run(spec, visible):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        return added.select_gpus(spec, added.parser)

    return run


@pytest.mark.parametrize(
    "spec, visible, gpus",
    [(None, 1, [0]), (None, 4, [0, 1, 2, 3]), ("1,2", 4, [1, 2]), ("3,0", 4, [3, 0]), ("0-7", 8, list(range(8)))],
)
def test_selected_gpus_are_those_asked_for_or_all(select_gpus, spec, visible, gpus):
    assert select_gpus(spec, visible) == gpus


@pytest.mark.parametrize(
    "spec, visible, says",
    [
        ("4", 4, "GPU 4 was asked for, 4 visible: 0 to 3"),
        ("0-7", 2, "GPU 7 was asked for, 2 visible: 0 to 1"),
        ("1,1", 4, "GPU 1 is named twice in '1,1'"),
        ("all", 4, "expected GPU ids such as 0,2 or 0-3,7, found 'all'"),
        (None, 0, "no GPU is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
        ("0", 0, "no GPU is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_cannot_be_had_end_in_one_line_and_status_2(select_gpus, capsys, spec, visible, says):
    with pytest.raises(SystemExit) as ended:
        select_gpus(spec, visible)
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert re.fullmatch(rf".+: error: --gpus: {re.escape(says)}\n", err)


def test_gpu_ids_needs_no_torch():
    # The patch reads its own option with it, and `apply` runs on machines without torch.
    module = ast.parse((REPO / "patches/added/gpu_ids.py").read_bytes())
    assert not any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(module))
