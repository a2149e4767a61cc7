"""Exported patches and diffs, and the modules that they bring, in git, patch and quilt."""

import functools
import re
import shutil
from pathlib import Path

import pytest
from conftest import apply_and_export, files_in, relock, tool

from patcher.build import export
from patcher.build.project import Project, Request
from patcher.build.upstream import verify

VARIANTS = {
    "as it is": lambda source: source,
    "crlf": lambda source: source.replace(b"\n", b"\r\n"),
    "no final newline": lambda source: source.removesuffix(b"\n"),
    "strange lines": lambda source: source + b"# \x0c a \xc2\x85 b \xe2\x80\xa8 c\n",
}


@pytest.fixture(scope="module")
def variant(toy_source, tmp_path_factory):
    """A toy project in another form, built to build/ and exported to out/ once for all tools."""

    @functools.cache
    def make(series: str, name: str) -> Path:
        root = tmp_path_factory.mktemp("variant") / "project"
        shutil.copytree(toy_source, root)
        for path in [*root.glob("upstream/*.py"), *root.glob("patches/support/*.py")]:
            path.write_bytes(VARIANTS[name](path.read_bytes()))
        relock(root)
        apply_and_export(root, series)
        return root

    return make


def unmarked(folder: Path) -> dict[str, bytes]:
    """What is in a build, without the lines that say so."""
    files = {name: content for name, content in files_in(folder).items() if name != "manifest.json"}
    assert all(content.startswith(b"# @generated") for content in files.values())
    return {name: content.partition(b"\n")[2] for name, content in files.items()}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("series", ["plain", "less", "more"])
@pytest.mark.parametrize("with_", ["git apply", "git apply --index", "patch -p1", "quilt push -a"])
def test_exported_patches_give_the_bytes_of_the_build(variant, tmp_path, series, name, with_):
    root = variant(series, name)
    shutil.copytree(
        root / "upstream", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock.json")
    )
    if "--index" in with_:
        tool("git", "init", "--quiet", cwd=tmp_path)
        tool("git", "add", ".", cwd=tmp_path)
    if with_ == "quilt push -a":
        tool("quilt", "--quiltrc", "-", "push", "-a", cwd=tmp_path, QUILT_PATCHES=str(root / "out"))
        shutil.rmtree(tmp_path / ".pc")
    else:
        for patch in (root / "out/series").read_text().split():
            tool(*with_.split(), cwd=tmp_path, stdin=(root / "out" / patch).read_bytes())
    shutil.rmtree(tmp_path / ".git", ignore_errors=True)
    # What a tool was unsure about it would have left beside them, as .orig or .rej.
    assert files_in(tmp_path) == unmarked(root / "build")
    assert not any(path.stat().st_mode & 0o111 for path in tmp_path.rglob("*.py"))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("with_", ["git apply", "patch -p1"])
def test_diff_gives_the_bytes_of_the_build(variant, tmp_path, patcher, name, with_):
    root = variant("more", name)
    shutil.copytree(
        root / "upstream", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock.json")
    )
    diff = patcher("diff", "--root", root, "--out", root / "build")
    assert diff.code == 0
    tool(*with_.split(), cwd=tmp_path, stdin=diff.stdout)
    built = files_in(root / "build")
    del built["manifest.json"]
    assert files_in(tmp_path) == built


def test_quilt_takes_its_patches_off_again(variant, tmp_path):
    root = variant("more", "as it is")
    shutil.copytree(root / "upstream", tmp_path, dirs_exist_ok=True)
    before = files_in(tmp_path)
    for command in ("push", "pop"):
        tool(
            "quilt", "--quiltrc", "-", command, "-a", cwd=tmp_path, QUILT_PATCHES=str(root / "out")
        )
    shutil.rmtree(tmp_path / ".pc")
    assert files_in(tmp_path) == before


def headings(diff: bytes) -> list[str]:
    return re.findall(r"^(?:---|\+\+\+) (.*)$", diff.decode(), flags=re.MULTILINE)


def test_module_comes_with_the_patch_that_needs_it_first(variant):
    out = variant("more", "as it is") / "out"
    new = {path.name: headings(path.read_bytes()) for path in sorted(out.glob("*.patch"))}
    assert new == {
        "doubled.patch": ["a/one.py", "b/one.py"],
        "said.patch": [
            *(
                "a/one.py",
                "b/one.py",
                "/dev/null",
                "b/support/__init__.py",
                "/dev/null",
                "b/support/base.py",
            ),
            *("/dev/null", "b/support/words.py", "a/two.py", "b/two.py"),
        ],
        "counted.patch": ["a/one.py", "b/one.py", "/dev/null", "b/support/counts.py"],
    }


def test_diff_shows_new_files_at_its_end(toy, patcher):
    for built in (False, True):
        assert headings(patcher("diff").stdout) == [
            *("upstream/one.py", "build/one.py", "upstream/two.py", "build/two.py"),
            *("/dev/null", "build/support/__init__.py", "/dev/null", "build/support/base.py"),
            *("/dev/null", "build/support/counts.py", "/dev/null", "build/support/words.py"),
        ]
        assert built or patcher("apply").code == 0


@pytest.mark.parametrize("names", [("doubled",), ("said",), ("counted",), ("counted", "said")])
def test_diff_with_names_shows_the_modules_that_these_patches_bring(toy, patcher, names):
    patcher("apply")
    patcher("export", "out")
    found = [
        (toy / f"out/{name}.patch").read_bytes().partition(b"\n---\n")[2]
        for name in sorted(names, reverse=True)
    ]
    assert patcher("diff", *names).stdout == b"".join(found)


def test_diff_of_a_series_that_fails_shows_what_it_would_bring(toy, patcher):
    (toy / "patches/support/counts.py").unlink()
    diff = patcher("diff")
    assert diff.code == 1
    assert headings(diff.stdout)[-2:] == ["/dev/null", "build/support/words.py"]
    assert "there is no patches/support/counts.py" in diff.err


def test_empty_module_is_exported_too(toy, patcher, tmp_path):
    (toy / "patches/support/__init__.py").write_bytes(b"")
    for folder in ("git apply", "patch -p1", "quilt push -a"):
        (tmp_path / folder).mkdir()
        shutil.copytree(toy / "upstream", tmp_path / folder, dirs_exist_ok=True)
    assert patcher("export", "out").code == 0
    for with_ in ("git apply", "patch -p1"):
        for patch in (toy / "out/series").read_text().split():
            tool(*with_.split(), cwd=tmp_path / with_, stdin=(toy / "out" / patch).read_bytes())
    push = ("quilt", "--quiltrc", "-", "push", "-a")
    tool(*push, cwd=tmp_path / "quilt push -a", QUILT_PATCHES=str(toy / "out"))
    for folder in ("git apply", "patch -p1", "quilt push -a"):
        assert (tmp_path / folder / "support/__init__.py").read_bytes() == b""


def test_patch_that_changes_nothing_is_left_out(toy):
    project = Project(toy)
    patches = project.patches_of(Request("more"))
    scripts, _ = verify(project.upstream)
    done = {
        name: source.replace(b"print('end')", b"words.say('end')")
        for name, source in scripts.items()
    }
    assert "said.patch" not in export.files(done, patches[:2], project.support(), "1a2b3c4")
