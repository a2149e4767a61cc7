"""--gpus chooses the GPUs, also in a script that stands alone, with all that it needs in it."""

import re

import pytest
from builds import data_set
from conftest import REPO, load
from rendering import SUPPORT, built, make, once

from patcher.core.engine import render
from patcher.core.problem import Problem
from patcher.core.truth import Verdict

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
PARSED, LIST = "    args = parser.parse_args()\n", "    gpus = [0, 1]\n"


def serves(distributed, dataparallel, monkeypatch):
    called = []
    monkeypatch.setattr("sys.argv", ["dataparallel.py", "--gpus", "1,2", "--data", data_set()])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr(dataparallel, "main_worker", lambda **given: called.append(given["gpus"]))
    dataparallel.main()
    assert called == [[1, 2]]


def edited(source: str, sites=None, **options) -> bytes:
    return built(source.encode(), make("configurable_gpus", **options), sites)


def verdict(source: str, **options) -> Verdict:
    return outcome(source, **options).verdict


def outcome(source: str, **options):
    """What the patch says to a script."""
    patch = make("configurable_gpus", **options)
    return render("dataparallel.py", source.encode(), [patch], SUPPORT).outcomes[0]


def is_left(source: str) -> bool:
    return once(source.encode(), make("configurable_gpus")) == source.encode()


@pytest.fixture
def run_main(tmp_path, monkeypatch):
    """What `main()` of the rewritten script returns, with four GPUs."""

    def run(source: str, *argv):
        (tmp_path / "script.py").write_bytes(edited(source))
        module = load(tmp_path / "script.py")
        monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 4)
        monkeypatch.setattr("sys.argv", ["script.py", *argv])
        return module.main()

    return run


@pytest.mark.parametrize("name", ["parser", "p"])
def test_rewritten_script_takes_gpus(name, run_main):
    assert run_main(SCRIPT.replace("parser", name), "--gpus", "3,1") == [3, 1]


def test_parsed_arguments_of_another_function_are_not_used(run_main):
    """`opt` does not exist in main(), and main() has names of its own."""
    other = "def {}():\n    opt = parser.parse_args()\n\n\n"
    source = SCRIPT.replace("def main", other.format("other") + "def main")
    assert run_main(source + other.format("last"), "--gpus", "2") == [2]
    assert is_left(
        SCRIPT.replace("def main", other.format("other") + "def main").replace(PARSED, "")
    )


def test_list_above_the_parsed_arguments_is_not_rewritten():
    """There the arguments do not exist yet."""
    assert PARSED + LIST in SCRIPT
    assert is_left(SCRIPT.replace(PARSED + LIST, LIST + PARSED))


@pytest.mark.parametrize("optional", [False, True])
def test_script_that_has_a_gpus_option_is_refused(optional):
    """A second one makes argparse raise, and then not even --help works."""
    said = outcome(SCRIPT.replace("'-x'", "'--gpus'"), optional=optional)
    assert said.verdict is Verdict.STALE
    assert (said.line, said.detail) == (4, "the script has an option --gpus already")


@pytest.mark.parametrize(
    "optional, name", [(False, "gpu_ids"), (False, "select_gpus"), (True, "gpu_list")]
)
def test_script_that_has_an_inserted_name_is_refused(optional, name):
    """T2: whichever comes last would be called by both."""
    said = outcome(SCRIPT + f"\n\ndef {name}(spec):\n    return 'mine'\n", optional=optional)
    assert said.verdict is Verdict.STALE
    assert (said.line, said.detail) == (13, f"the script has a {name} of its own")


def test_options_of_a_group_do_not_make_the_group_the_parser(run_main, capsys):
    """A group takes options like a parser, but cannot end the program like one."""
    group = "group = parser.add_argument_group('more')\ngroup.add_argument('-y')\n"
    with pytest.raises(SystemExit) as ended:
        run_main(SCRIPT.replace("\n\n\n", f"\n{group}\n\n", 1), "--gpus", "7")
    assert ended.value.code == 2
    assert "GPU 7 was asked for" in capsys.readouterr().err


FLAT = SCRIPT.replace("\n\ndef main():", "").replace("    return gpus\n", "").replace("    ", "")
IN_AN_IF = SCRIPT.replace("    ", "      ").replace("def main", "if parser:\n  def main")


@pytest.mark.parametrize(
    "source, function",
    [
        (FLAT, "<module>"),
        (FLAT + "import late\n", "<module>"),
        (FLAT + "def late():\n    pass\n", "<module>"),
        (IN_AN_IF, "main"),
    ],
)
def test_functions_are_inserted_above_their_use_wherever_that_is(source, function):
    result = edited(source, {function: 1})
    parts = (b"def gpu_ids", b"def select_gpus", b"= select_gpus(")
    assert [result.index(part) for part in parts] == sorted(map(result.index, parts))
    assert result.index(b'"--gpus"') < result.index(b" = parser.parse_args")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_inserted_functions_are_the_tested_ones_word_for_word(ending):
    result = edited(SCRIPT.replace("\n", ending))
    source = (REPO / "patches/support/gpu_list.py").read_text()
    functions = source[source.index("def gpu_ids(") :]
    assert ("\n\n" + functions).replace("\n", ending).encode() in result
    assert not re.search(rb"[^\r]\n" if ending == "\r\n" else rb"\r", result)


def test_optional_gpus_leave_the_script_to_its_folder():
    result = edited(SCRIPT, optional=True).decode()
    assert "    from support import gpu_list\n" in result and "def gpu_ids" not in result
    assert "parser.add_argument('-x')\ngpu_list.add_options(parser)\n" in result
    call = "gpu_list.select_gpus(args.gpus, parser, torch.cuda.device_count(), optional=True)"
    assert f"{PARSED}    gpus = {call}\n    return gpus\n" in result


@pytest.mark.parametrize(
    "line", ["gpus = None", "gpus = []", "devices = torch.cuda.device_count()"]
)
def test_any_other_value_of_that_name_does_not_pass_for_the_edit(line):
    """OBSOLETE tells a human to delete the patch; here nobody can choose anything."""
    assert verdict(SCRIPT.replace(LIST, f"    {line}\n")) is Verdict.STALE


def test_unrelated_variable_beside_the_list_does_not_make_the_patch_stale():
    devices = "    devices = torch.cuda.device_count()\n"
    assert verdict(SCRIPT.replace(LIST, devices + LIST)) is Verdict.CLEAN


def test_list_that_is_already_the_one_asked_for_is_done():
    assert verdict(SCRIPT, gpus="0-1") is Verdict.OBSOLETE


@pytest.mark.parametrize("gpus", ["", "0,0", "x", "2-1"])
def test_bad_list_is_refused_when_the_patch_is_made(gpus):
    with pytest.raises(Problem, match=r"expected GPU ids|named twice") as caught:
        make("configurable_gpus", gpus=gpus)
    # As in a series; on the command line it would be bad usage, 2.
    assert (caught.value.code, caught.value.file) == (1, "patches/__init__.py")
