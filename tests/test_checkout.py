"""A checkout whose lines end in CRLF, as git's core.autocrlf does: the same build and hashes."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import REPO, files_in, relock, replace
from test_sources import in_git, repository

from patcher.build import build, upstream
from patcher.build.project import Project, Request


def crlf(root: Path) -> None:
    """End the lines of everything that git takes for text with CRLF."""
    for path in (*root.glob("patches/**/*"), *root.glob("upstream/*")):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("attributes", [True, False])
def test_clone_with_crlf_makes_the_same_build(
    three_patches, pristine_build, process, tmp_path, attributes
):
    """T1: `git clone -c core.autocrlf=true`, with the root's .gitattributes and with none."""
    tracked = {
        name: content
        for name, content in files_in(three_patches).items()
        if "__pycache__" not in name
    }
    tracked |= {
        f"patcher/{name}": content
        for name, content in files_in(REPO / "patcher").items()
        if name.endswith(".py")
    }
    if attributes:
        tracked[".gitattributes"] = (REPO / ".gitattributes").read_bytes()
    else:
        del tracked["upstream/.gitattributes"]
    source, clone = repository(tmp_path / "source", tracked), tmp_path / "clone"
    command = ["git", "clone", "--quiet", "-c", "core.autocrlf=true", str(source), str(clone)]
    subprocess.run(command, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})
    for name in (
        "patches/support/gpu_list.py",
        "patcher/build/build.py",
        "upstream/distributed.py",
    ):
        assert (b"\r\n" in (clone / name).read_bytes()) is not attributes
    assert in_git(clone, "status", "--porcelain") == ""
    assert process("apply", cwd=clone, PYTHONPATH=str(clone)).code == 0
    assert files_in(clone / "build") == files_in(
        pristine_build
    )  # with the manifest, in which the hashes are
    assert process("check", cwd=clone, PYTHONPATH=str(clone)).code == 0


@pytest.mark.parametrize("series", ["guide", "standard"])
def test_plan_does_not_depend_on_line_endings_of_the_checkout(small_project, three_patches, series):
    """T1: functions that are written into a script come without the CRLF of patches/support/."""
    crlf(small_project)
    plans = [build.plan(Project(root), Request(series)) for root in (three_patches, small_project)]
    assert plans[0].files == plans[1].files != {}
    assert not any(b"\r" in content for content in plans[1].files.values())


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_script_has_the_line_endings_of_the_lock(small_project, ending):
    """T1: a lock of CRLF scripts in a checkout that has made LF of them, and the reverse."""
    path = small_project / "upstream/distributed.py"
    source = path.read_bytes().replace(b"\n", ending)
    path.write_bytes(source)
    relock(small_project)
    for form in (b"\n", b"\r\n"):
        path.write_bytes(source.replace(b"\r\n", b"\n").replace(b"\n", form))
        scripts, problems = upstream.verify(small_project / "upstream")
        assert (scripts["distributed.py"], problems) == (source, [])


def test_edit_in_a_crlf_checkout_is_still_an_edit_by_hand(small_project, patcher):
    """T1: line endings are not an edit; what else differs is."""
    crlf(small_project)
    replace(small_project / "upstream/distributed.py", b"default=3200", b"default=32")
    result = patcher("check")
    assert result.code == 1
    assert "upstream/distributed.py" in result.out and "edited by hand" in result.out


def test_vendor_judges_and_writes_in_a_crlf_checkout(small_project, patcher, tmp_path):
    """T1: what is there counts as it is in the lock; what is written is what arrived."""
    arrived = shutil.copytree(small_project / "upstream", tmp_path / "new")
    crlf(small_project)
    assert "holds these scripts already" in patcher("vendor", arrived).out
    result = patcher("vendor", arrived, "--write")
    assert result.code == 0
    assert (small_project / "upstream/distributed.py").read_bytes() == (
        arrived / "distributed.py"
    ).read_bytes()


def test_stale_patch_on_the_pinned_upstream_is_not_told_to_follow_upstream(small_project, patcher):
    """T1: upstream is what it was when all was clean, so something here has changed."""
    replace(small_project / "patches/reshape_topk.py", b'"view"', b'"veiw"')
    result = patcher("apply")
    assert result.code == 1
    assert "Adapt patches/" not in result.out
    says = "is as it was taken in: see what has changed in patches/ and patcher/"
    assert f"  upstream/distributed.py {says}" in result.out


def test_patch_that_was_stale_when_upstream_was_taken_in_has_to_follow_it(
    small_project, patcher, tmp_path
):
    """T1: the lock names patches accepted as stale, until a text comes on which they are clean."""
    pristine = shutil.copytree(small_project / "upstream", tmp_path / "pristine")
    new = shutil.copytree(pristine, tmp_path / "new")
    replace(new / "distributed.py", b"[:k].view(-1)", b"[:k].flatten()")
    assert patcher("vendor", new, "--write", "--accept-stale").code == 0
    lock = json.loads((small_project / "upstream/lock.json").read_bytes())
    assert lock["stale"] == ["reshape_topk"]
    assert "  Adapt patches/reshape_topk.py to this text" in patcher("check").out
    assert patcher("vendor", pristine, "--write").code == 0
    assert "stale" not in json.loads((small_project / "upstream/lock.json").read_bytes())
