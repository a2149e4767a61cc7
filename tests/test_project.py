"""How a series is read from the folder that holds it."""

import os
import shutil

import pytest
from conftest import REPO, replace

from patcher.build.project import Project, Request
from patcher.core.problem import Problem, UsageError

TWICE = """
class Again(Patch):
    pass
"""


@pytest.fixture
def project(small_project):
    return small_project


def test_patch_changed_within_a_second_is_read_anew(project, process):
    # Python's own cache goes by size and whole seconds: a manifest would vouch for what was not
    # run.
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


@pytest.mark.parametrize(
    "count, change", [(2, lambda text: text + TWICE), (0, lambda text: "import libcst\n")]
)
def test_file_with_another_number_of_patches_than_one_is_a_finding(project, count, change):
    path = project / "patches/reshape_topk.py"
    path.write_text(change(path.read_text()))
    with pytest.raises(Problem, match=f"expected 1 subclass of Patch, found {count}") as caught:
        Project(project).patches_of(Request("standard"))
    assert (caught.value.file, caught.value.code) == ("patches/reshape_topk.py", 1)


def test_patch_that_records_an_option_it_does_not_take_is_a_finding(project):
    path = project / "patches/local_rank_from_env.py"
    replace(path, b"super().__init__(fallback=", b"super().__init__(fallbakc=")
    with pytest.raises(Problem, match=r"cannot be made: TypeError: .*'fallbakc'") as caught:
        Project(project).patches_of(Request("standard"))
    assert (caught.value.file, caught.value.code) == ("patches/local_rank_from_env.py", 1)


@pytest.mark.parametrize(
    "name", ["reshape_topk", "any_launcher"]
)  # it comes after it, or not at all
def test_patch_before_one_that_it_needs_is_a_fault_of_the_series(project, name):
    path = project / "patches/local_rank_from_env.py"
    replace(path, b"    changes = [", f'    needs = ("{name}",)\n    changes = ['.encode())
    with pytest.raises(Problem, match=f"local_rank_from_env has to come after {name}") as caught:
        Project(project).patches_of(Request("standard"))
    assert (caught.value.file, caught.value.code) == ("patches/__init__.py", 1)


def test_support_is_every_module_by_its_name(project):
    for name in (".#gpu_list.py", "notes.txt"):  # of an editor; and of nobody
        (project / "patches/support" / name).write_text("")
    (project / "patches/support/folder.py").mkdir()
    modules = Project(project).support()
    assert sorted(modules) == ["__init__", "gpu_list"]
    assert modules["gpu_list"] == (project / "patches/support/gpu_list.py").read_bytes()
    shutil.rmtree(project / "patches/support")
    assert Project(project).support() == {}


def test_inputs_are_all_that_decides_on_the_bytes_of_a_build(project, process):
    inputs = Project(project).inputs()
    assert {f"patches/support/{name}.py" for name in ("__init__", "gpu_list")} <= inputs.keys()
    code = "import sys, patcher.core.engine; print(*sys.modules)"
    names = [m for m in process("-c", code, args=[]).out.split() if m.startswith("patcher.")]
    loaded = {f"{name.replace('.', '/')}.py" for name in names}
    loaded -= {"patcher/core.py", "patcher/tree.py", "patcher/core/problem.py"}
    entry = {"patcher/__init__.py", "patcher/build/build.py"}
    assert loaded == {name for name in inputs if name.startswith("patcher/")} - entry


def test_build_needs_no_torch(project, process):
    # What a patch imports of patches/support/ comes without torch; so does the package itself.
    (project / "torch.py").write_text("raise ImportError('nobody needs it to build')")
    assert process("apply", cwd=project, PYTHONPATH=f"{REPO}{os.pathsep}{project}").code == 0
    assert process("-c", "import torch", args=[], cwd=project).code == 1


def test_two_projects_in_one_process_do_not_share_their_patches(project, tmp_path):
    other = tmp_path / "other"
    (other / "patches").mkdir(parents=True)
    (other / "patches/__init__.py").write_text(
        'SERIES = {"mine": {"only": {}}}\nDEFAULT = "mine"\n'
    )
    first, second = Project(project), Project(other)
    for _ in range(2):
        assert "guide" in first.all_series()
        assert list(second.all_series()) == ["mine"]


def test_wrong_option_in_the_series_is_the_fault_of_its_file(project):
    replace(
        project / "patches/__init__.py",
        b'"configurable_gpus": {}',
        b'"configurable_gpus": {"x": 1}',
    )
    with pytest.raises(Problem, match="has no option 'x'") as caught:
        Project(project).patches_of(Request("guide"))
    assert (caught.value.file, caught.value.code) == ("patches/__init__.py", 1)


def test_wrong_option_on_the_command_line_is_bad_usage(project):
    with pytest.raises(UsageError, match="has no option 'x'") as caught:
        Project(project).patches_of(Request("guide", ("configurable_gpus.x=1",)))
    assert (caught.value.file, caught.value.code) == ("", 2)
