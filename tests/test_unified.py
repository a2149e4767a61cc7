"""Unified diffs over bytes, in the hands of the tools that read them."""

import os
import shutil
import subprocess

import pytest
from conftest import environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patcher.core.unified import diff, lines

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": "/"}

# Line breaks to somebody, but not to git, patch or quilt, stand inside lines.
PIECES = [
    b"a",
    b"b",
    b"c\r",
    b"\x0c",
    b"d\re",
    b"\x85\xff",
    "\u2028".encode(),
    b"",
    b"--- f",
    b"+x",
    b"-y",
    b"\\ No",
    b" ",
]
sources = st.tuples(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12), st.booleans()).map(
    lambda drawn: b"\n".join(drawn[0]) + (b"\n" if drawn[1] else b"")
)


@given(sources)
def test_lines_end_at_newlines_alone_and_join_to_the_source(source):
    assert b"".join(lines(source)) == source
    assert all(line.count(b"\n") == line.endswith(b"\n") for line in lines(source))
    assert all(line.endswith(b"\n") for line in lines(source)[:-1])


def test_equal_sources_have_an_empty_diff():
    assert diff(b"a\r\nb", b"a\r\nb", "a/f", "b/f") == b""


def test_missing_final_newline_is_marked_on_the_side_that_lacks_it():
    assert diff(b"a\nb", b"a\nb\n", "a/f", "b/f") == (
        b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"
    )


def test_new_file_is_an_addition_to_nothing():
    assert diff(None, b"a\nb", "a/f", "b/d/f") == (
        b"--- /dev/null\n+++ b/d/f\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n"
    )
    assert diff(None, b"", "a/f", "b/d/f") == b"diff --git a/d/f b/d/f\nnew file mode 100644\n"
    assert diff(b"", b"", "a/f", "b/d/f") == b""


NAMES = [
    b"t\tab",
    b'q"uote',
    b"s pace",
    b"\xff",
    b"\xff \t",
    b"n\nl",
    b"back\\slash",
    b"\x01\r\x7f",
    b"2020-01-01 00:00:00",
]


@pytest.mark.parametrize("name", [*NAMES, "ä".encode()])
@pytest.mark.parametrize("tool", ["git apply", "patch -p1 --silent"])
def test_tool_finds_the_file_by_its_name(tmp_path, tool, name):
    """T6: names with bytes that are no text, quotes, tabs, newlines, blanks: changed, new, and new
    and empty.
    """
    if shutil.which(tool.split()[0]) is None:
        pytest.skip(f"{tool.split()[0]} is not installed")
    old, new, empty = (os.fsdecode(folder + name) for folder in (b"d/", b"new/", b"empty/"))
    (tmp_path / "d").mkdir()
    (tmp_path / old).write_bytes(b"a\n")
    text = diff(b"a\n", b"b\n", f"a/{old}", f"b/{old}") + diff(None, b"c\n", f"a/{new}", f"b/{new}")
    wanted = {old: b"b\n", new: b"c\n"}
    if (
        b" " not in name or tool == "git apply"
    ):  # patch takes no blanks there, from git itself either
        text += diff(None, b"", f"a/{empty}", f"b/{empty}")
        wanted[empty] = b""
    done = subprocess.run(
        tool.split(), cwd=tmp_path, input=text, env=environment(**GIT), capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert found == wanted


@pytest.mark.parametrize("name", NAMES)
def test_header_is_that_of_git(tmp_path, name):
    """T6: the quotes are git's own."""

    def git(*argv):
        done = subprocess.run(
            ["git", *argv], cwd=tmp_path, env=environment(**GIT), check=True, capture_output=True
        )
        return done.stdout

    git("init", "-q")
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(b"a\n")
    git("add", ".")
    path.write_bytes(b"b\n")
    ours = diff(b"a\n", b"b\n", f"a/{path.name}", f"b/{path.name}")
    assert git("-c", "core.quotePath=true", "diff").endswith(b"\n" + ours)


@pytest.mark.parametrize("tool", ["git apply --whitespace=nowarn", "patch -p1 --silent"])
@given(before=st.one_of(st.none(), sources.filter(bool)), after=sources.filter(bool))
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_tool_makes_the_new_bytes_of_the_old_ones(tmp_path, tool, before, after):
    if shutil.which(tool.split()[0]) is None:
        pytest.skip(f"{tool.split()[0]} is not installed")
    shutil.rmtree(tmp_path / "d", ignore_errors=True)
    if before is not None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/f").write_bytes(before)
    text = diff(before, after, "a/d/f", "b/d/f")
    if text:
        done = subprocess.run(
            tool.split(), cwd=tmp_path, input=text, env=environment(**GIT), capture_output=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "d/f").read_bytes() == after
