"""Unified diffs over bytes, in the hands of the tools that read them."""

import os
import shutil
import subprocess

import pytest
from conftest import environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patcher.unified import diff, lines

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


@pytest.mark.parametrize("tool", ["git apply --whitespace=nowarn", "patch -p1 --silent"])
@given(before=st.one_of(st.none(), sources.filter(bool)), after=sources.filter(bool))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tool_makes_the_new_bytes_of_the_old_ones(tmp_path, tool, before, after):
    if shutil.which(tool.split()[0]) is None:
        pytest.skip(f"{tool.split()[0]} is not installed")
    shutil.rmtree(tmp_path / "d", ignore_errors=True)
    if before is not None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/f").write_bytes(before)
    text = diff(before, after, "a/d/f", "b/d/f")
    if text:
        environ = environment(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1", GIT_CEILING_DIRECTORIES="/")
        done = subprocess.run(tool.split(), cwd=tmp_path, input=text, env=environ, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "d/f").read_bytes() == after
