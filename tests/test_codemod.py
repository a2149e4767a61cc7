"""The patches in the hands of LibCST's own tool."""

from pathlib import Path

import libcst
import pytest
from conftest import REPO, replace
from libcst.codemod import CodemodContext, CodemodTest, SkipFile

import patcher.codemod
from patcher.build.project import Project, Request
from patcher.core.engine import render


class ReshapeTopKTest(CodemodTest):
    """The command in the harness that LibCST gives to authors of codemods."""

    TRANSFORM = patcher.codemod.ReshapeTopK

    def test_slice_is_flattened_with_reshape(self):
        self.assertCodemod("n = hit[:k].view(-1).sum()\n", "n = hit[:k].reshape(-1).sum()\n")

    def test_any_number_of_sites_is_edited(self):
        # These are not our scripts: nobody has stated how many there are.
        self.assertCodemod(
            "a[:1].view(-1)\nb[:2].view(-1)\n", "a[:1].reshape(-1)\nb[:2].reshape(-1)\n"
        )

    def test_look_alike_is_left_and_said_to_be_nothing_to_edit(self):
        source = "t = target.view(1, -1)\n"
        self.assertCodemod(source, source, expected_warnings=["nothing to edit"])


class GuideTest(CodemodTest):
    """A whole series as one command."""

    TRANSFORM = patcher.codemod.guide

    def test_every_patch_of_the_series_is_applied(self):
        self.assertCodemod(
            "import os\np.add_argument('--local_rank', default=-1)\nn = hit[:k].view(-1)\n",
            "import os\np.add_argument('--local_rank', default=int(os.environ[\"LOCAL_RANK\"]))\n"
            "n = hit[:k].reshape(-1)\n",
        )

    def test_options_are_set_as_on_the_command_line_of_patcher(self):
        self.assertCodemod(
            "gpus = [0, 1]\n", "gpus = [2, 3]\n", sets=["configurable_gpus.gpus=2-3"]
        )


@pytest.mark.parametrize("series", ["guide", "standard"])
@pytest.mark.parametrize("script", ["distributed.py", "dataparallel.py"])
def test_command_of_a_series_makes_what_the_engine_makes(series, script):
    source = (REPO / "upstream" / script).read_bytes()
    project = Project(REPO)
    expected = render(script, source, project.patches_of(Request(series)), project.support()).after
    command = getattr(patcher.codemod, series)(CodemodContext(filename=script))
    assert command.transform_module(libcst.parse_module(source)).bytes == expected


@pytest.mark.parametrize(
    "name", ["ReshapeTopK", "LocalRankFromEnv", "ConfigurableGpus", "guide", "standard"]
)
def test_command_has_a_description(name):
    assert getattr(patcher.codemod, name).DESCRIPTION.endswith(".")


def test_one_command_counts_each_module_on_its_own():
    # The tool makes one for all the files that a process is given.
    context = CodemodContext()
    command = patcher.codemod.ReshapeTopK(context)
    command.transform_module(libcst.parse_module("hit[:k].view(-1)\n"))
    assert context.warnings == []
    command.transform_module(libcst.parse_module("x = 1\n"))
    assert context.warnings == ["nothing to edit"]


@pytest.fixture
def optional():
    """The command `configurable_gpus`, with the option that makes it call a support module."""
    context = CodemodContext()
    return context, patcher.codemod.ConfigurableGpus(
        context, sets=["configurable_gpus.optional=true"]
    )


SCRIPT = """\
import torch
p.add_argument('-x')


def main():
    a = p.parse_args()
    gpus = [0, 1]
    go(gpus)
"""


def test_script_that_calls_a_support_module_is_said_to_need_the_folder(optional):
    context, command = optional
    edited = command.transform_module(libcst.parse_module(SCRIPT)).code
    assert "from support import gpu_list" in edited
    assert "gpu_list.select_gpus(a.gpus, p" in edited
    assert context.warnings == [
        "imports support: copy patches/support/ to the folder of the script"
    ]


def test_script_that_a_patch_refuses_is_skipped_with_the_reason(optional):
    _, command = optional
    with pytest.raises(SkipFile, match="configurable_gpus: the script has a gpu_list of its own"):
        command.transform_module(libcst.parse_module("gpu_list = None\n" + SCRIPT))


@pytest.mark.parametrize("name", ["NoSuchPatch", "reshape_topk", "__wrapped__"])
def test_unknown_name_is_an_attribute_error_that_names_it(name):
    with pytest.raises(AttributeError, match=repr(name)):
        getattr(patcher.codemod, name)


# The tool itself

SOURCE = b"x = ( 1,2 )\r\nn = hit[:k].view(-1).sum()  # \xc3\xa4\r\n\r\n\r\n\r\ny = 3"
EDITED = SOURCE.replace(b".view(", b".reshape(")
UNRELATED = b"x = ( 1,2 )\n\n\n\n\ny = 3"


@pytest.fixture
def codemod(process, tmp_path):
    """Runs `python -m libcst.tool codemod` in a folder with two scripts and one that has nothing to
    edit.
    """
    (tmp_path / "one.py").write_bytes(SOURCE)
    (tmp_path / "two.py").write_bytes(b"\xef\xbb\xbf" + SOURCE)
    (tmp_path / "other.py").write_bytes(UNRELATED)

    def run(*argv):
        return process("--no-format", *argv, args=("-m", "libcst.tool", "codemod"), cwd=tmp_path)

    return run


@pytest.mark.parametrize("command", ["ReshapeTopK", "standard"])
def test_tool_edits_a_file_and_no_other_byte(codemod, tmp_path, command):
    result = codemod("-x", f"patcher.codemod.{command}", "one.py")
    assert result.code == 0, result.err
    assert "Transformed 1 files successfully" in result.err
    assert (tmp_path / "one.py").read_bytes() == EDITED
    assert (tmp_path / "two.py").read_bytes() == b"\xef\xbb\xbf" + SOURCE


@pytest.mark.parametrize("command", ["ReshapeTopK", "standard"])
def test_tool_edits_several_files_in_several_processes(codemod, tmp_path, command):
    result = codemod("-x", f"patcher.codemod.{command}", "-j", "2", "one.py", "two.py", "other.py")
    assert result.code == 0, result.err
    assert (tmp_path / "one.py").read_bytes() == EDITED
    assert (tmp_path / "two.py").read_bytes() == b"\xef\xbb\xbf" + EDITED
    assert (tmp_path / "other.py").read_bytes() == UNRELATED
    assert result.err.count("nothing to edit") == 1


def test_tool_with_an_option_edits_upstream_as_apply_does(codemod, tmp_path):
    source = (REPO / "upstream/dataparallel.py").read_bytes()
    (tmp_path / "one.py").write_bytes(source)
    result = codemod("-x", "patcher.codemod.guide", "--set", "configurable_gpus.gpus=0-7", "one.py")
    assert result.code == 0, result.err
    patches = Project(REPO).patches_of(Request("guide", ("configurable_gpus.gpus=0-7",)))
    assert (tmp_path / "one.py").read_bytes() == render("dataparallel.py", source, patches).after
    assert b"gpus = [0, 1, 2, 3, 4, 5, 6, 7]" in (tmp_path / "one.py").read_bytes()


def test_tool_reports_a_file_that_does_not_parse_and_edits_the_others(codemod, tmp_path):
    (tmp_path / "two.py").write_bytes(b"print 'x'\n")
    result = codemod("-x", "patcher.codemod.ReshapeTopK", "one.py", "two.py")
    assert result.code == 1
    assert "Failed to codemod" in result.err
    assert "two.py" in result.err
    assert (tmp_path / "one.py").read_bytes() == EDITED
    assert (tmp_path / "two.py").read_bytes() == b"print 'x'\n"


def test_second_run_of_the_tool_changes_nothing(codemod, tmp_path):
    for _ in range(2):
        codemod("-x", "patcher.codemod.standard", "one.py")
    assert (tmp_path / "one.py").read_bytes() == EDITED


def test_commands_come_from_the_project_in_the_working_directory(project, process):
    replace(project / "patches/reshape_topk.py", b'cst.Name("reshape")', b'cst.Name("ravel")')
    (project / "one.py").write_bytes(SOURCE)
    argv = ("--no-format", "-x", "patcher.codemod.ReshapeTopK", "one.py")
    process(*argv, args=("-m", "libcst.tool", "codemod"), cwd=project)
    assert Path("one.py").read_bytes() == SOURCE.replace(b".view(", b".ravel(")
