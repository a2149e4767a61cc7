"""How a series is read from the folder that holds it."""

import os

import pytest
from conftest import replace

from patcher.problem import Problem, UsageError
from patcher.project import Project, Request

TWICE = """
class Again(ReshapeTopK):
    pass
"""


@pytest.fixture
def project(small_project):
    return small_project


def test_patch_changed_within_a_second_is_read_anew(project, process):
    # Python's own cache goes by size and by whole seconds, and a manifest would then vouch for what was not run.
    path = project / "patches/reshape_topk.py"
    assert process("apply", cwd=project, PYTHONDONTWRITEBYTECODE=None).code == 0
    before = path.stat()
    replace(path, b'cst.Name("reshape")', b'cst.Name("flatten")')
    replace(path, b'_flattens_slice(node, "reshape")', b'_flattens_slice(node, "flatten")')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert process("apply", cwd=project, PYTHONDONTWRITEBYTECODE=None).code == 0
    assert b"[:k].flatten(-1)" in (project / "build/distributed.py").read_bytes()


def test_run_leaves_nothing_in_the_folder_of_the_patches(project, process):
    before = sorted((project / "patches").rglob("*"))
    process("apply", cwd=project, PYTHONDONTWRITEBYTECODE=None)
    assert sorted((project / "patches").rglob("*")) == before


@pytest.mark.parametrize("count, change", [(2, lambda text: text + TWICE), (0, lambda text: "import libcst\n")])
def test_file_with_another_number_of_patches_than_one_is_a_finding(project, count, change):
    path = project / "patches/reshape_topk.py"
    path.write_text(change(path.read_text()))
    with pytest.raises(Problem, match=f"expected 1 subclass of Patch, found {count}") as caught:
        Project(project).patches_of(Request("standard"))
    assert (caught.value.file, caught.value.code) == ("patches/reshape_topk.py", 1)


def test_two_projects_in_one_process_do_not_share_their_patches(project, tmp_path):
    other = tmp_path / "other"
    (other / "patches").mkdir(parents=True)
    (other / "patches/__init__.py").write_text('SERIES = {"mine": {"only": {}}}\nDEFAULT = "mine"\n')
    first, second = Project(project), Project(other)
    for _ in range(2):
        assert "guide" in first.all_series()
        assert list(second.all_series()) == ["mine"]


def test_wrong_option_in_the_series_is_the_fault_of_its_file(project):
    replace(project / "patches/__init__.py", b'"configurable_gpus": {}', b'"configurable_gpus": {"x": 1}')
    with pytest.raises(Problem, match="has no option 'x'") as caught:
        Project(project).patches_of(Request("guide"))
    assert (caught.value.file, caught.value.code) == ("patches/__init__.py", 1)


def test_wrong_option_on_the_command_line_is_bad_usage(project):
    with pytest.raises(UsageError, match="has no option 'x'") as caught:
        Project(project).patches_of(Request("guide", ("configurable_gpus.x=1",)))
    assert (caught.value.file, caught.value.code) == ("", 2)
