"""Arguments in, findings and an exit status out."""

import functools
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO, apply_and_export, environment, files_in, relock, replace, tool

import patcher as package
from patcher import cli, commands, report
from patcher.core.problem import Problem

SCRIPTS = ("dataparallel.py", "distributed.py")
COMMANDS = {"apply": [], "check": [], "diff": [], "list": [], "export": ["out"]}


@pytest.fixture
def project(small_project):
    return small_project


# The exit status of every command in every situation


def obsolete(root: Path) -> None:
    for script in SCRIPTS:
        replace(root / "upstream" / script, b"[:k].view(-1)", b"[:k].reshape(-1)")
    relock(root)


def stale(root: Path) -> None:
    replace(root / "upstream/distributed.py", b"[:k].view(-1)", b"[:k].flatten()")
    relock(root)


def unparsable(root: Path) -> None:
    replace(root / "upstream/distributed.py", b"def train(", b"def train((")
    relock(root)


def edit(name: str, old: bytes, new: bytes):
    return lambda root: replace(root / name, old, new)


LINE = (b"default=3200", b"default=32")
SITUATIONS = {  # what is done to a fresh build; the exit status of apply, check, diff, list, export
    "fine": (lambda root: None, (0, 0, 0, 0, 0)),
    "not built": (lambda root: shutil.rmtree(root / "build"), (0, 1, 1, 0, 0)),
    "stale": (stale, (1, 1, 1, 1, 1)),
    "obsolete": (obsolete, (0, 1, 1, 0, 0)),
    "edited upstream": (edit("upstream/distributed.py", *LINE), (1, 1, 1, 1, 1)),
    "edited build": (edit("build/distributed.py", *LINE), (1, 1, 1, 0, 0)),
    "edited manifest": (edit("build/manifest.json", b"cd12856", b"cd12857"), (1, 1, 1, 0, 0)),
    "edited patch": (edit("patches/__init__.py", b'{"fallback": True}', b"{}"), (0, 1, 1, 0, 0)),
    "interrupted": (lambda root: (root / "build/.patcher-undo").mkdir(), (0, 1, 1, 0, 0)),
    "unparsable upstream": (unparsable, (2, 2, 2, 2, 2)),
    "damaged lock": (lambda root: (root / "upstream/lock.json").write_text("{"), (1, 1, 1, 1, 1)),
    "no lock": (lambda root: (root / "upstream/lock.json").unlink(), (2, 2, 2, 2, 2)),
    "crash in a patch": (
        edit("patches/reshape_topk.py", b"import libcst", b"import nosuch\nimport libcst"),
        (1, 1, 1, 1, 1),
    ),
    "syntax error in a patch": (
        edit("patches/reshape_topk.py", b"class ReshapeTopK", b"class ReshapeTopK("),
        (1, 1, 1, 1, 1),
    ),
    "crash in the series": (
        edit("patches/__init__.py", b"guide = {", b"1 / 0\nguide = {"),
        (1, 1, 1, 1, 1),
    ),
    "missing patch": (lambda root: (root / "patches/reshape_topk.py").unlink(), (1, 1, 1, 1, 1)),
}
MATRIX = [
    pytest.param(command, situation, codes[number], id=f"{command}-{situation}")
    for situation, (_, codes) in SITUATIONS.items()
    for number, command in enumerate(COMMANDS)
]


@pytest.mark.parametrize("command, situation, code", MATRIX)
def test_exit_status_and_words_fit_the_situation(fresh, patcher, command, situation, code):
    SITUATIONS[situation][0](fresh)
    # With --root: what is missing here would else be taken from what patcher itself came with.
    result = patcher(command, *COMMANDS[command], "--root", fresh)
    said = result.out + result.err
    assert result.code == code, said
    assert "Traceback" not in said
    assert bool(re.search("^error: ", said, flags=re.MULTILINE)) == (code != 0)
    if code == 0:
        assert result.err == ""


BAD_USAGE = [
    (["--series", "fast"], "there is no series 'fast'; there are: guide, standard"),
    (["--set", "nosuch.x=1"], "'nosuch'"),
    (["--set", "nosuch.x=1"], "local_rank_from_env, reshape_topk, configurable_gpus"),
    (
        ["--set", "configurable_gpus.cards=1"],
        "configurable_gpus has no option 'cards'; it has: gpus",
    ),
    (["--set", "reshape_topk.x=1"], "reshape_topk has no option 'x'; it has none"),
    (["--set", "configurable_gpus.gpus=all"], "expected GPU ids such as 0,2 or 0-3,7, found 'all'"),
    (["--set", "local_rank_from_env.fallback=maybe"], "expected true or false, found 'maybe'"),
    (["--set", "gpus=1"], "expected patch.option=value"),
    (["--set", "configurable_gpus.gpus"], "expected patch.option=value"),
    (["--set", ""], "expected patch.option=value"),
    (["--root", "build"], "build: no upstream/lock.json and patches/__init__.py here"),
    (["--format", "xml"], "invalid choice: 'xml'"),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
]


@pytest.mark.parametrize(
    "command, arguments, says",
    [
        (c, *usage)
        for c in COMMANDS
        for usage in BAD_USAGE
        if c != "list" or "--set" not in usage[0]
    ],
)
def test_bad_usage_ends_in_2_and_lists_what_is_right(fresh, patcher, command, arguments, says):
    result = patcher(command, *COMMANDS[command], *arguments)
    assert result.code == 2
    assert says in result.err
    assert result.out == ""


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["--frobnicate"]])
def test_no_or_an_unknown_command_ends_in_2_and_lists_the_commands(patcher, arguments):
    result = patcher(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("usage: patcher")
    if arguments == ["frobnicate"]:
        assert all(command in result.err for command in COMMANDS)


def test_unknown_patch_in_diff_lists_those_of_the_series(fresh, patcher):
    result = patcher("diff", "reshape")
    assert (result.code, result.out) == (2, "")
    assert (
        "has no patch 'reshape'; it has: local_rank_from_env, reshape_topk, configurable_gpus"
        in result.err
    )


@pytest.mark.parametrize(
    "out", ["upstream", "patches", "upstream/build", "patches/support", "x/../upstream"]
)
@pytest.mark.parametrize("command", ["apply --out", "export"])
def test_sources_are_never_written_into(project, patcher, command, out):
    before = sorted(path for path in project.rglob("*"))
    result = patcher(*command.split(), out)
    assert result.code == 2
    assert "is what a build is made from" in result.err
    assert sorted(path for path in project.rglob("*")) == before


def test_crash_of_patcher_itself_ends_in_2_and_asks_for_a_report(project, patcher, monkeypatch):
    monkeypatch.setattr(commands, "apply", lambda *args: 1 / 0)
    result = patcher("apply")
    assert (result.code, result.out) == (2, "")
    assert "ZeroDivisionError" in result.err
    assert "this is a fault of patcher itself" in result.err


def test_interrupt_from_the_keyboard_ends_in_130_without_a_traceback(project, patcher, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "apply", interrupt)
    assert patcher("apply") == (130, b"", b"")


# Refusals

OWN = b"def gpu_list():\n    return [0]\n\n\n"


def said(result, form: str) -> list[tuple]:
    """(file, line, message, hint) of each finding, in whichever form it is printed."""
    both = result.out + result.err
    if form == "json":
        return [
            tuple(p[key] for key in ("file", "line", "message", "hint"))
            for p in json.loads(both)["problems"]
        ]
    if form == "github":
        found = re.findall(
            r"^::error file=([^,]*),line=(\d+),title=patcher::(.*?)%0A(.*)",
            both,
            flags=re.MULTILINE,
        )
        return [(file, int(line), message, hint) for file, line, message, hint in found]
    found = re.findall(r"^error: ([^:]*):(\d+): (.*)\n  (.*)", both, flags=re.MULTILINE)
    return [(file, int(line), message, hint) for file, line, message, hint in found]


@pytest.mark.parametrize("form", ["text", "json", "github"])
@pytest.mark.parametrize("command", ["apply", "check", "diff", "vendor"])
def test_refusal_says_why_and_at_which_line(project, patcher, command, form):
    arguments, where = [], "upstream/"
    if command == "vendor":
        shutil.copytree(project / "upstream", project / "new")
        arguments, where = ["new"], ""
    changed = project / ("new" if arguments else "upstream") / "dataparallel.py"
    replace(changed, b"def main():", OWN + b"def main():")
    relock(project)
    result = patcher(command, *arguments, "--format", form)
    assert result.code == 1
    series = " in series standard" if arguments else ""  # guide brings no such name
    line = changed.read_bytes().split(b"\n").index(b"def gpu_list():") + 1
    advice = "Adapt patches/configurable_gpus.py to this text, or take it out of the series in "
    advice += "patches/__init__.py."
    if not arguments:  # what is in the lock was clean when it was taken in
        advice = "upstream/dataparallel.py is as it was taken in: see what has changed in patches/ "
        advice += "and patcher/, with `git diff`."
    message = f"configurable_gpus: stale{series}: refused: the script has a gpu_list of its own"
    found = [finding for finding in said(result, form) if "configurable_gpus" in finding[2]]
    assert found == [(f"{where}dataparallel.py", line, message, advice)]
    assert not (project / "build").exists()


def test_refusal_is_data_for_a_program(project, patcher):
    replace(project / "upstream/dataparallel.py", b"def main():", OWN + b"def main():")
    relock(project)
    outcomes = json.loads(patcher("apply", "--format", "json").out)["outcomes"]
    (refused,) = (o for o in outcomes if o["refused"])
    assert (refused["patch"], refused["verdict"]) == ("configurable_gpus", "stale")
    assert refused["detail"] == "the script has a gpu_list of its own"


# OBSOLETE


def test_obsolete_patch_is_advice_for_apply_and_a_finding_for_check(project, patcher):
    obsolete(project)
    result = patcher("apply")
    assert result.code == 0
    assert (
        "warning: upstream/distributed.py: reshape_topk: obsolete: upstream has this edit now"
        in result.out
    )
    line = (project / "patches/__init__.py").read_text().split("\n").index(
        '    "reshape_topk": {},'
    ) + 1
    advice = "  Delete patches/reshape_topk.py and its entry in the series:\n"
    assert f'{advice}  - patches/__init__.py:{line}: "reshape_topk": {{}},\n' in result.out
    assert b"reshape(-1)" in (project / "build/distributed.py").read_bytes()
    result = patcher("check")
    assert result.code == 1
    assert "reshape_topk: obsolete" in result.out


def test_obsolete_patch_is_named_again_by_an_apply_that_has_nothing_to_do(project, patcher):
    obsolete(project)
    assert patcher("apply").code == 0
    result = patcher("apply")
    assert result.code == 0
    assert "reshape_topk: obsolete" in result.out


def test_obsolete_patch_can_be_shown_by_diff(project, patcher):
    obsolete(project)
    patcher("apply")
    result = patcher("diff", "local_rank_from_env")
    assert result.code == 1
    assert "LOCAL_RANK" in result.out
    assert "gpus" not in result.out


@pytest.mark.parametrize("name", ["configurable_gpus", "local_rank_from_env"])
def test_diff_of_a_patch_is_its_own_while_another_is_stale(project, patcher, name):
    """T5: its own hunks, word for word those of a project in which all is well."""
    fine = patcher("diff", name).stdout
    stale(project)
    result = patcher("diff", name)
    assert (result.code, result.stdout) == (1, fine) and fine
    assert "reshape_topk: stale" in result.err


def test_diff_of_a_stale_patch_shows_no_hunk_of_another(project, patcher):
    """T5: it is stale in one file, and there it does nothing."""
    stale(project)
    result = patcher("diff", "reshape_topk")
    assert result.code == 1
    assert re.findall("^[+-]{3} .*", result.out, flags=re.MULTILINE) == [
        "--- a/dataparallel.py",
        "+++ b/dataparallel.py",
    ]
    assert len(re.findall("^[+-] ", result.out, flags=re.MULTILINE)) == 2
    result = patcher("diff", "reshape_topk", "--format", "json")
    assert json.loads(result.out)["diff"].count("@@ ") == 1


def test_diff_of_a_patch_shows_nothing_if_upstream_was_edited(project, patcher):
    """T5: then no patch is tried."""
    replace(project / "upstream/distributed.py", b"default=3200", b"default=32")
    result = patcher("diff", "reshape_topk")
    assert (result.code, result.out) == (1, "")


def test_advice_about_an_obsolete_patch_works(project, patcher):
    obsolete(project)
    patcher("apply")
    (project / "patches/reshape_topk.py").unlink()
    replace(project / "patches/__init__.py", b'    "reshape_topk": {},\n', b"")
    assert patcher("apply").code == 0
    assert patcher("check").code == 0


# What the options mean


def test_last_of_two_settings_of_one_option_wins(project, patcher):
    patcher("apply", "--set", "configurable_gpus.gpus=2", "--set", "configurable_gpus.gpus=1")
    assert b"    gpus = [1]\n" in (project / "build/dataparallel.py").read_bytes()


def test_order_of_settings_of_different_options_does_not_matter(project, patcher):
    settings = (
        ["--set", "configurable_gpus.gpus=2"],
        ["--set", "local_rank_from_env.fallback=false"],
    )
    patcher("apply", *settings[0], *settings[1])
    assert "nothing to do" in patcher("apply", *settings[1], *settings[0]).out


def test_setting_beats_the_series(project, patcher):
    patcher("apply", "--series", "standard", "--set", "local_rank_from_env.fallback=false")
    assert b'int(os.environ["LOCAL_RANK"])' in (project / "build/distributed.py").read_bytes()


@pytest.mark.parametrize("command", ["check", "diff"])
def test_check_and_diff_take_the_series_that_the_build_was_made_by(project, patcher, command):
    patcher("apply", "--series", "guide", "--set", "configurable_gpus.gpus=1")
    assert patcher(command).code == 0
    result = patcher(command, "--series", "guide")
    assert result.code == 1
    assert (
        "built as series guide --set configurable_gpus.gpus=1, not as series guide"
        in result.out + result.err
    )


def test_root_may_be_elsewhere_and_relative(fresh, patcher, monkeypatch):
    monkeypatch.chdir(fresh.parent)
    assert patcher("check", "--root", fresh.name, "--out", f"{fresh.name}/build").code == 0


@pytest.mark.parametrize("root", [".", "../project"])
def test_patch_that_cannot_be_imported_is_named_from_a_relative_root_too(project, patcher, root):
    with (project / "patches/reshape_topk.py").open("a") as file:
        file.write("import nosuch\n")
    line = (project / "patches/reshape_topk.py").read_bytes().count(b"\n")
    result = patcher("apply", "--root", root)
    assert result.code == 1
    says = "cannot import: ModuleNotFoundError: No module named 'nosuch'"
    assert f"error: patches/reshape_topk.py:{line}: {says}" in result.out


def test_without_a_project_here_the_one_beside_the_package_is_used(tmp_path, monkeypatch, patcher):
    monkeypatch.chdir(tmp_path)
    assert patcher("apply").code == 0
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == [
        "dataparallel.py",
        "distributed.py",
        "manifest.json",
        "support",
    ]


def test_project_is_searched_upwards_and_named(fresh, patcher, monkeypatch):
    """T9: a sub-folder works on the project around it and its build, not on the package's."""
    (fresh / "docs/more").mkdir(parents=True)
    monkeypatch.chdir(fresh / "docs/more")
    assert patcher("check").out == f"project {fresh}\n../../build: up to date, series standard\n"
    assert json.loads(patcher("check", "--format", "json").out)["root"] == str(fresh)
    assert (
        f"::notice title=patcher::project {fresh}\n" in patcher("check", "--format", "github").out
    )
    replace(fresh / "build/distributed.py", b"default=3200", b"default=32")
    result = patcher("check")
    assert result.out.startswith(f"project {fresh}\n")
    assert "error: ../../build/distributed.py:" in result.out
    assert patcher("apply", "--series", "guide", "--overwrite").code == 0
    assert not (fresh / "docs/more/build").exists()
    result = patcher("diff")
    assert (result.out[:4], result.err) == ("--- ", f"project {fresh}\n")


@pytest.mark.parametrize("command", ["check", "list"])
def test_project_of_the_package_is_named(tmp_path, patcher, monkeypatch, command):
    """T9: nobody is to take it for the one at hand."""
    monkeypatch.chdir(tmp_path)
    assert patcher(command).out.startswith(f"project {REPO}\n")


def test_project_at_hand_is_not_named(fresh, patcher):
    """T9: by whatever path it is given."""
    for root in ([], ["--root", "."], ["--root", "../project"], ["--root", fresh]):
        assert "project" not in patcher("check", *root).out
    assert json.loads(patcher("check", "--format", "json").out)["root"] == ""


def test_diff_with_names_shows_only_what_these_patches_do(fresh, patcher):
    result = patcher("diff", "reshape_topk")
    assert result.code == 0
    assert result.out.count("-            correct_k = correct[:k].view(-1)") == 2
    assert len(re.findall(r"^[-+](?!--|\+\+)", result.out, flags=re.MULTILINE)) == 4


def test_list_shows_every_patch_with_series_state_and_sites(project, patcher):
    stale(project)
    result = patcher("list")
    rows = {
        line.split()[0]: line
        for line in result.out.splitlines()
        if not line.startswith(("error", " "))
    }
    assert set(rows) == {"patch", "local_rank_from_env", "reshape_topk", "configurable_gpus"}
    assert re.search(
        r"guide, standard +stale +distributed.py: accuracy; dataparallel.py: accuracy",
        rows["reshape_topk"],
    )
    assert re.search(
        r"guide, standard +clean +distributed.py: <module>", rows["local_rank_from_env"]
    )


def test_list_in_markdown_is_a_table_of_every_patch(project, patcher):
    lines = patcher("list", "--format", "markdown").out.splitlines()
    assert lines[1] == "|---|---|---|---|---|"
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "`local_rank_from_env`",
        "`reshape_topk`",
        "`configurable_gpus`",
    ]
    assert {line.count("|") for line in lines} == {6}


# Help


def test_version_is_that_of_the_package(patcher):
    assert patcher("--version") == (0, f"patcher {package.__version__}\n".encode(), b"")


def test_help_has_examples_and_says_what_the_exit_status_means(patcher):
    result = patcher("--help")
    assert (result.code, result.err) == (0, "")
    assert "examples:" in result.out
    assert "exit status: 0 fine, 1 a human has to look, 2 bad usage" in result.out
    assert all(f"    {command} " in result.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(patcher, command):
    result = patcher(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert f"usage: patcher {command}" in result.out
    assert "--root" in result.out


def test_examples_in_the_help_work(project, patcher):
    lines = re.findall(r"^  patcher (.*?)(?:   .*)?$", cli.EXAMPLES, flags=re.MULTILINE)
    # `verify` has a test of its own.
    lines = [line for line in lines if "://" not in line and not line.startswith("verify")]
    assert len(lines) >= 6
    (project / "my_scripts").mkdir()
    codes = [(line, patcher(*shlex.split(line)).code) for line in lines]
    assert {code for _, code in codes} == {0}, codes


# Formats


@pytest.mark.parametrize(
    "command, situation",
    [
        *((command, "stale") for command in COMMANDS),
        *(
            ("check", situation)
            for situation in ("fine", "edited build", "crash in a patch", "unparsable upstream")
        ),
        ("apply", "unparsable upstream"),
    ],
)
def test_json_is_one_document_that_says_what_and_where(fresh, patcher, command, situation):
    change, codes = SITUATIONS[situation]
    change(fresh)
    result = patcher(command, *COMMANDS[command], "--format", "json")
    data = json.loads(result.out)
    assert result.err == ""
    assert result.code == data["exit"] == codes[list(COMMANDS).index(command)]
    assert data["command"] == command
    assert bool(data["problems"]) == (result.code != 0)
    for problem in data["problems"]:
        assert problem["level"] == "error"
        assert (fresh / problem["file"]).exists()
        assert problem["message"]
    if situation == "stale":
        found = next(p for p in data["problems"] if "reshape_topk" in p["message"])
        lines = (fresh / "upstream/distributed.py").read_text().split("\n")
        assert found["file"] == "upstream/distributed.py"
        assert lines[found["line"] - 1] == "def accuracy(output, target, topk=(1, )):"
    if situation == "unparsable upstream":
        found = next(p for p in data["problems"] if "cannot parse" in p["message"])
        lines = (fresh / "upstream/distributed.py").read_text().split("\n")
        assert lines[found["line"] - 1].startswith("def train((")
        assert found["column"] > 0


def test_json_of_apply_lists_outcomes_and_written_files(project, patcher):
    data = json.loads(patcher("apply", "--format", "json").out)
    support = ["support/__init__.py", "support/gpu_list.py"]
    assert data["changed"] == ["dataparallel.py", "distributed.py", *support, "manifest.json"]
    assert {(o["patch"], o["file"], o["verdict"]) for o in data["outcomes"]} == {
        ("reshape_topk", "dataparallel.py", "clean"),
        ("reshape_topk", "distributed.py", "clean"),
        ("configurable_gpus", "dataparallel.py", "clean"),
        ("local_rank_from_env", "distributed.py", "clean"),
    }
    assert all(o["expected"] == o["found"] != {} for o in data["outcomes"])


def test_json_of_bad_usage_is_json_too(project, patcher):
    data = json.loads(patcher("apply", "--series", "fast", "--format", "json").out)
    assert data["exit"] == 2
    assert "there is no series 'fast'" in data["problems"][0]["message"]


def test_github_annotations_name_file_and_line(fresh, patcher):
    replace(fresh / "build/distributed.py", b"default=3200,", b"default=32,")
    line = (fresh / "build/distributed.py").read_bytes().split(b"\n").index(
        b"                    default=32,"
    ) + 1
    result = patcher("check", "--format", "github")
    assert result.code == 1
    assert result.err == ""
    assert result.out == (
        f"::error file=build/distributed.py,line={line},title=patcher::edited by hand, now "
        "'default=32,'%0AKeep what you need of it, best as a patch, then run `apply --overwrite`.\n"
    )


def test_github_annotation_of_an_obsolete_patch_is_a_warning(project, patcher):
    obsolete(project)
    result = patcher("apply", "--format", "github")
    assert result.out.startswith(
        "::warning file=upstream/dataparallel.py,title=patcher::reshape_topk: obsolete"
    )
    assert result.out.splitlines()[-1].startswith("::notice title=patcher::build: wrote ")


def test_github_annotations_escape_what_would_end_them():
    problem = Problem("50 %\r\nof: a, b", file="a,b:c%.py", line=3, column=7, hint="next\nline")
    assert list(
        report.github(report.Report("check", "s", problems=[problem], summary="1 %\n2"))
    ) == [
        "::error file=a%2Cb%3Ac%25.py,line=3,col=7,title=patcher::"
        "50 %25%0D%0Aof: a, b%0Anext%0Aline",
        "::notice title=patcher::1 %25%0A2",
    ]


# What a person is told when all is well


def test_apply_says_in_a_paragraph_what_it_did_and_what_to_run_next(project, patcher):
    result = patcher("apply")
    assert result.out.splitlines() == [
        "build: wrote dataparallel.py, distributed.py, support/ (2 files), manifest.json",
        "3 patches of series standard applied; -v lists them. Next (--help shows all options):",
        "  python build/dataparallel.py --data DIR",
        "  torchrun --nproc_per_node=8 build/distributed.py --data DIR",
    ]


@pytest.mark.parametrize("command", ["apply", "check"])
def test_verbose_shows_the_patches_that_are_clean_too(fresh, patcher, command):
    quiet, verbose = patcher(command).out, patcher(command, "-v").out
    assert quiet.count("\n") == 1 and " clean " not in quiet
    assert verbose.count(" clean ") == 4 and quiet in verbose


@pytest.mark.parametrize("command", ["apply", "check"])
def test_only_what_is_not_clean_is_shown_unless_verbose(fresh, patcher, command):
    stale(fresh)
    rows = [line.split()[:3] for line in patcher(command).out.splitlines() if line[:2] == "  "]
    assert rows[0] == ["reshape_topk", "distributed.py", "stale"]
    assert not any(row[2] == "clean" for row in rows)
    assert patcher(command, "-v").out.count(" clean ") == 3
    data = json.loads(patcher(command, "--format", "json").out)
    assert [o["verdict"] for o in data["outcomes"]].count("clean") == 3


# Streams


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_stands_on_stderr_when_all_is_well(fresh, process, command):
    # With all warnings shown, as in a developer's shell.
    result = process(command, *COMMANDS[command], cwd=fresh, args=("-X", "dev", "-m", "patcher"))
    assert (result.code, result.err) == (0, "")
    assert result.out != ""


@pytest.mark.parametrize("command", ["apply", "check", "list", "export"])
def test_findings_stand_on_stdout(fresh, patcher, command):
    stale(fresh)
    result = patcher(command, *COMMANDS[command])
    assert "upstream/distributed.py" in result.out
    assert result.err == ""


def test_findings_of_diff_do_not_get_into_the_diff(fresh, patcher):
    whole = patcher("diff")
    assert (whole.code, whole.err) == (0, "")
    replace(fresh / "build/distributed.py", b"default=3200", b"default=32")
    result = patcher("diff")
    assert (result.code, result.stdout) == (1, whole.stdout)
    assert "build/distributed.py:" in result.err


@pytest.mark.parametrize("command", ["diff", "list", "check"])
def test_reader_that_goes_away_ends_the_run_without_a_traceback(fresh, command):
    reader, stdout = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "patcher", command],
        cwd=fresh,
        env=environment(),
        stdout=stdout,
        stderr=subprocess.PIPE,
    )
    os.close(stdout)
    assert (done.returncode, done.stderr) == (1, b"")


def test_finding_that_the_terminal_cannot_show_is_no_crash(fresh, process):
    replace(
        fresh / "upstream/distributed.py", b"default=3200,", "default=3200,  # \N{SNOWMAN}".encode()
    )
    result = process("check", cwd=fresh, PYTHONIOENCODING="ascii")
    assert (result.code, result.err) == (1, "")
    assert "upstream/distributed.py:" in result.out


def on_terminal(*argv, cwd, **env) -> tuple[int, str]:
    """Exit status and text of a run whose streams are a terminal 40 columns wide."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "patcher", *argv],
        cwd=cwd,
        env=environment(TERM="xterm-256color", COLUMNS="40", NO_COLOR=None, **env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not more:
            break
        text += more
    os.close(ours)
    return process.wait(timeout=60), text.decode().replace("\r\n", "\n")


ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("argv", [["list"], ["check", "--series", "guide"], ["diff"]], ids=" ".join)
def test_terminal_gets_colours_and_the_same_words_as_a_pipe(fresh, process, argv):
    pytest.importorskip("rich")
    stale(fresh)
    plain = process(*argv, cwd=fresh)
    code, text = on_terminal(*argv, cwd=fresh)
    assert "\x1b" not in plain.out + plain.err
    assert "\x1b[1;31m" in text
    assert ANSI.sub("", text) == plain.out + plain.err
    assert code == plain.code


def test_terminal_shows_code_as_it_is(fresh, process):
    # Not :bug: as an insect, nor [bold] as bold.
    replace(fresh / "upstream/distributed.py", b"default=3200,", b"default=x[bold][:bug:],")
    plain = process("check", cwd=fresh)
    _, text = on_terminal("check", cwd=fresh)
    assert "x[bold][:bug:]" in plain.out
    assert ANSI.sub("", text) == plain.out


def test_terminal_without_rich_gets_plain_text(fresh, process, tmp_path):
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow/rich.py").write_text("raise ImportError('not installed')\n")
    stale(fresh)
    code, text = on_terminal(
        "check", cwd=fresh, PYTHONPATH=f"{tmp_path / 'shadow'}{os.pathsep}{REPO}"
    )
    assert (code, text) == (1, process("check", cwd=fresh).out)


OUTPUT = {
    **COMMANDS,
    "vendor": ["upstream"],
    "rewrite": ["upstream"],
    "check --format json": [],
    "--help": [],
}


@pytest.mark.parametrize("command", OUTPUT)
@pytest.mark.parametrize("why", ["No space left on device", "it is closed"])
def test_stdout_that_takes_nothing_is_said_in_one_line(fresh, capsys, monkeypatch, command, why):
    """T7: `> /dev/full` and `>&-`, for each command and for --help."""
    stdout = None if "closed" in why else open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", stdout)
    assert cli.main([*command.split(), *OUTPUT[command]]) == 2
    assert capsys.readouterr().err == f"patcher: cannot write to stdout: {why}\n"


@pytest.mark.parametrize("unbuffered", ["1", None])
@pytest.mark.parametrize(
    "redirect, status", [(">/dev/full", 2), (">&-", 2), (">/dev/full 2>&1", 2), ("2>&-", 0)]
)
def test_process_without_a_stream_ends_in_silence(fresh, redirect, status, unbuffered):
    """T7: neither Python's words at its exit, nor its status 120; without stderr all is well."""
    env = environment(PYTHONUNBUFFERED=unbuffered)
    shell = f"{shlex.quote(sys.executable)} -m patcher diff {redirect}"
    done = subprocess.run(shell, shell=True, cwd=fresh, env=env, capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr.count("\n") == (">&1" not in redirect and status == 2)
    assert done.stdout.startswith("--- ") == (status == 0)


def test_bad_usage_is_said_although_stdout_is_full(fresh, capsys, monkeypatch):
    """T7: nothing is written there, so nothing is wrong with it."""
    monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: SIM115
    assert cli.main(["check", "--series", "nosuch"]) == 2
    assert "there is no series 'nosuch'" in capsys.readouterr().err


# What a run imports

IMPORTED = """
import sys
from patcher.cli import main

code = main(sys.argv[1:])
print(*sys.modules)
sys.exit(code)
"""


def imported(process, *argv, cwd) -> set[str]:
    result = process(*argv, args=("-c", IMPORTED), cwd=cwd)
    assert result.code == 0, result
    return set(result.out.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["apply", "check"])
def test_run_with_nothing_to_do_imports_little(fresh, process, command):
    modules = imported(process, command, cwd=fresh)
    assert {"patcher.cli", "patcher.build.manifest", "patches"} <= modules
    heavy = {"libcst", "rich", "torch", "typing", "dataclasses", "patcher.report"}
    heavy |= {"patcher.core.engine", "patcher.core.patch", "patches.reshape_topk"}
    assert modules & heavy == set()


def test_apply_that_renders_imports_no_torch_and_no_codemod_machinery(project, process):
    modules = imported(process, "apply", cwd=project)
    needed = {"patcher.core.engine", "patches.configurable_gpus", "patches.support.gpu_list"}
    heavy = {"torch", "patches.support.devices", "libcst.codemod", "libcst.matchers"}
    assert needed <= modules and modules & heavy == set()


# Diffs and exported patches in other tools' hands

GUARD = b"\n\n\nif __name__ == '__main__':\n    main()"
VARIANTS = {
    "as it is": lambda source: source,
    "crlf": lambda source: source.replace(b"\n", b"\r\n"),
    "final newline": lambda source: source + b"\n",
    # accuracy() ends dataparallel.py then, and a hunk reaches to a last line that does not end.
    "hunk at the end": lambda source: source.replace(GUARD, b"").replace(b"\n", b"\r\n"),
}


@pytest.fixture(scope="module")
def variant(three_patches, tmp_path_factory):
    """A project with another upstream, built and exported to out/; made once for all tools."""

    @functools.cache
    def make(series: str, name: str) -> Path:
        root = tmp_path_factory.mktemp("variant")
        for folder in ("upstream", "patches"):
            shutil.copytree(three_patches / folder, root / folder)
        for script in SCRIPTS:
            (root / "upstream" / script).write_bytes(
                VARIANTS[name]((root / "upstream" / script).read_bytes())
            )
        relock(root)
        apply_and_export(root, series)
        return root

    return make


def without_first_line(source: bytes) -> bytes:
    first, _, rest = source.partition(b"\n")
    assert first.startswith(b"# @generated")
    return rest


def built(root: Path) -> dict[str, bytes]:
    """The scripts of the build, and the modules that they import."""
    return {
        name: content
        for name, content in files_in(root / "build").items()
        if name != "manifest.json"
    }


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("series", ["guide", "standard"])
@pytest.mark.parametrize("with_", ["git apply", "patch -p1", "quilt push -a"])
def test_exported_patches_give_the_bytes_of_the_build(variant, tmp_path, series, name, with_):
    root = variant(series, name)
    for script in SCRIPTS:
        shutil.copy(root / "upstream" / script, tmp_path)
    patches = [root / "out" / line for line in (root / "out/series").read_text().split()]
    assert len(patches) == 3
    if with_ == "quilt push -a":
        tool("quilt", "--quiltrc", "-", "push", "-a", cwd=tmp_path, QUILT_PATCHES=str(root / "out"))
        shutil.rmtree(tmp_path / ".pc")
    for patch in patches if with_ != "quilt push -a" else []:
        tool(*with_.split(), cwd=tmp_path, stdin=patch.read_bytes())
    # All of them: what a tool was unsure about it would have left beside them, as .orig or .rej.
    assert files_in(tmp_path) == {
        name: without_first_line(content) for name, content in built(root).items()
    }


@pytest.mark.parametrize("with_", ["git apply", "patch -p1"])
@pytest.mark.parametrize("name", VARIANTS)
def test_diff_gives_the_bytes_of_the_build(variant, tmp_path, patcher, name, with_):
    root = variant("standard", name)
    for script in SCRIPTS:
        shutil.copy(root / "upstream" / script, tmp_path)
    diff = patcher("diff", "--root", root, "--out", root / "build")
    assert diff.code == 0
    tool(*with_.split(), cwd=tmp_path, stdin=diff.stdout)
    assert files_in(tmp_path) == built(root)


def test_exported_patch_tells_why_and_from_where_in_dep3_headers(project, patcher):
    patcher("export", "out")
    for name in (project / "out/series").read_text().split():
        head = (project / "out" / name).read_text().partition("\n---\n")[0]
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]+): (.*)$", head, flags=re.MULTILINE))
        assert set(fields) == {"Description", "Origin", "Bug", "Forwarded", "Applied-Upstream"}
        assert fields["Description"].endswith(".")
        assert f"patches/{name.removesuffix('.patch')}.py" in fields["Origin"]
        assert fields["Bug"].startswith("https://")
        assert fields["Applied-Upstream"] == "no, not in cd12856"
        # What is neither a field nor indented would end the header.
        assert all(re.match(r"[A-Z][A-Za-z-]+: | \S", line) for line in head.split("\n"))


def test_exported_patch_names_its_options(project, patcher):
    patcher("export", "out", "--set", "configurable_gpus.gpus=0-1")
    text = (project / "out/configurable_gpus.patch").read_text()
    assert "gpus=[0, 1]" in text.partition("\n---\n")[0]
    assert "+    gpus = [0, 1]\n" in text


def test_second_export_changes_nothing_and_a_different_file_is_refused(project, patcher):
    patcher("export", "out")
    before = {path.name: path.stat().st_mtime_ns for path in (project / "out").iterdir()}
    assert patcher("export", "out").code == 0
    assert {path.name: path.stat().st_mtime_ns for path in (project / "out").iterdir()} == before
    (project / "out/reshape_topk.patch").write_text("mine")
    result = patcher("export", "out")
    assert result.code == 1
    assert "out/reshape_topk.patch: already there, and different" in result.out
    assert (project / "out/reshape_topk.patch").read_text() == "mine"
    assert patcher("export", "out", "--overwrite").code == 0
    assert (project / "out/reshape_topk.patch").read_text() != "mine"


@pytest.mark.parametrize("situation", ["stale", "unparsable upstream", "edited upstream"])
def test_nothing_is_exported_where_something_is_wrong(fresh, patcher, situation):
    SITUATIONS[situation][0](fresh)
    assert patcher("export", "out").code in (1, 2)
    assert not (fresh / "out").exists()


def test_obsolete_patch_is_not_exported(project, patcher):
    obsolete(project)
    assert patcher("export", "out").code == 0
    assert (
        project / "out/series"
    ).read_text() == "local_rank_from_env.patch\nconfigurable_gpus.patch\n"
