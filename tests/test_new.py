"""`patcher new` begins a patch that says what is missing, and leaves the series as it reads."""

import ast
import importlib.util
import re

import pytest
from conftest import REPO, forget_patches, replace, tree

from patcher.build.project import Project, Request

NEW = ["new", "a_new_patch", "--file", "distributed.py", "--function", "train"]
PATCH, TEST = "patches/a_new_patch.py", "tests/patches/test_a_new_patch.py"


def test_new_patch_is_the_last_of_the_default_series(project, patcher):
    result = patcher(*NEW, "--file", "dataparallel.py")
    assert (result.code, result.err) == (0, "")
    line = (project / "patches/__init__.py").read_text().split("\n").index('    "a_new_patch": {},')
    first, *steps = result.out.splitlines()
    assert (
        first
        == f'wrote {PATCH} and {TEST}; added patches/__init__.py:{line + 1}: "a_new_patch": {{}},'
    )
    assert [step[:2] for step in steps] == ["1.", "2.", "3."]
    forget_patches()
    *_, patch = Project(project).patches_of(Request("standard"))
    places = {"train": 1}
    assert patch.sites == {"distributed.py": places, "dataparallel.py": places}
    assert type(patch).__name__ == "ANewPatch"


@pytest.mark.parametrize("function", ["train", "<module>", "ProgressMeter.display"])
def test_skeleton_is_stale_and_says_what_to_fill_in(project, patcher, function):
    assert patcher(*NEW[:-1], function).code == 0
    result = patcher("apply")
    assert result.code == 1
    says = (
        r"upstream/distributed.py:\d+: a_new_patch: stale: refused: patches/a_new_patch.py is not"
    )
    assert re.search(f"^error: {says} written yet$", result.out, re.MULTILINE)
    assert "Traceback" not in result.err


def test_skeletons_are_python_whose_test_fails_until_it_is_written(project, patcher):
    patcher(*NEW)
    source = (project / PATCH).read_text()
    assert max(map(len, source.split("\n"))) <= 100 and source.count("TODO") >= 6
    names = [node.name for node in ast.parse(source).body[-1].body if hasattr(node, "name")]
    assert names == ["done", "leave_FunctionDef"]
    spec = importlib.util.spec_from_file_location("test_a_new_patch", project / TEST)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(pytest.fail.Exception, match=f"{TEST} is not written yet"):
        module.serves(None, None, None)


@pytest.mark.parametrize(
    "old, new",
    [
        ("t = {}", 't = {"n": {}}'),
        ('t = {"a": {}}  # one', 't = {"a": {}, "n": {}}  # one'),
        ('t = {"a": {},}', 't = {"a": {}, "n": {}}'),
        (
            't: dict = {\n    "a": {},  # b, c\n}',
            't: dict = {\n    "a": {},  # b, c\n    "n": {},\n}',
        ),
        ('t = {\n    "a": {}  # b, c\n}', 't = {\n    "a": {},  # b, c\n    "n": {},\n}'),
        ('t = {\r\n    "ä": {},\r\n}', 't = {\r\n    "ä": {},\r\n    "n": {},\r\n}'),
        ('t = a | {\n    "a": {}}', 't = a | {\n    "a": {}, "n": {}}'),
    ],
)
def test_entry_is_put_at_the_end_of_the_topic(project, patcher, old, new):
    rest = '\na = {"reshape_topk": {}}\nSERIES = {"a": a, "s": t}\nDEFAULT = "s"\n'
    ending = "\r\n" if "\r" in old else "\n"
    path = project / "patches/__init__.py"
    before, after = ((text + rest.replace("\n", ending)) for text in (old, new))
    if "a |" in old:
        before, after = (f'a = {{"reshape_topk": {{}}}}\n{text}' for text in (before, after))
    path.write_bytes(before.encode())
    assert patcher("new", "n", *NEW[2:]).code == 0
    assert path.read_bytes() == after.encode()
    assert (b"\r\n" in (project / "patches/n.py").read_bytes()) == (ending == "\r\n")


def test_topic_may_be_named(project, patcher):
    assert patcher(*NEW, "--topic", "numbers").code == 0
    forget_patches()
    names = list(Project(project).series("standard"))
    assert names[names.index("seeded_run") + 1] == "a_new_patch"


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["ANewPatch"], "expected a name such as print_freq, found 'ANewPatch'"),
        (["import"], "expected a name such as print_freq, found 'import'"),
        (["resume"], "there is a resume already: patches/resume.py"),
        (["support"], "there is a support already: patches/support/"),
        (
            ["n", "--file", "distribted.py"],
            "no script 'distribted.py'; did you mean distributed.py?",
        ),
        (["n", "--function", "trian"], "no function 'trian'; did you mean train?"),
        (["n", "--function", "zzz"], "no function 'zzz'; it has: "),
        (["n", "--topic", "restrat"], "no topic 'restrat'; did you mean restart?"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(project, patcher, arguments, says):
    before = tree(project)
    result = patcher("new", arguments[0], *NEW[2:], *arguments[1:])
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert tree(project) == before


def test_project_of_an_installed_patcher_is_not_written(project, patcher, monkeypatch):
    monkeypatch.setattr("patcher.build.project.HERE", project.parent)
    project.rename(project.parent / "bundle")
    monkeypatch.chdir(project.parent)
    result = patcher(*NEW)
    assert result.code == 2
    assert "came with patcher and is not written: use a checkout" in result.err
    assert not (project.parent / "bundle" / PATCH).exists()


def test_nothing_is_written_if_a_file_cannot_be(project, patcher):
    (project / "tests").write_text("mine")
    before = tree(project)
    result = patcher(*NEW)
    assert result.code == 1
    assert "tests: expected a folder, found a file" in result.out
    assert tree(project) == before


def test_edited_upstream_is_a_finding(project, patcher):
    replace(project / "upstream/distributed.py", b"default=3200", b"default=32")
    assert "upstream/distributed.py:" in patcher(*NEW).out
    assert not (project / PATCH).exists()


def test_test_skeleton_looks_like_the_others():
    for path in sorted((REPO / "tests/patches").glob("test_*.py")):
        assert "\ndef serves(distributed, dataparallel, monkeypatch)" in path.read_text(), path
