"""`async=` in scripts that are not ours, a keyword since Python 3.7: what is renamed, and what is
only said.
"""

import pytest
from rewriting import run

from patcher.rewrite.sites import State

CALLS = [
    "x = x.cuda(async=True)",
    "x = x.cuda(0, async = True)  # async=True",
    "x.cuda(async=x.is_pinned()).float()",
    "x = x.to(device, async=True)",
    "x.copy_(y, async=False)",
    "self.x[0].cuda(async=True).copy_(y, async=True)",
    "x.cuda(\n    device=(0),\n    # async=True\n    async=True,\n)",
    "'ä', x.cuda(async=True), 'ü'",
    "\x0cx.cuda(async=True)",
    "if x:\n\tx.cuda(\n\t\tasync=True)",
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("head", ["", "'''async=\n'''\n"])
@pytest.mark.parametrize("call", CALLS)
def test_argument_of_a_tensors_method_is_renamed(call, head, newline):
    """T12: `.cuda(async=True)` becomes `.cuda(non_blocking=True)`, and nothing but that."""
    source = (head + call + "\n").replace("\n", newline)
    done = run(source)
    assert done.problem is None
    assert {finding.state for finding in done.findings} == {State.REWRITTEN}
    expected = source
    for before in ("async=x", "async=True", "async = True", "async=False"):
        expected = expected.replace(before, before.replace("async", "non_blocking"))
    assert done.after.decode() == expected.replace("# non_blocking", "# async")
    assert run(done.after.decode()).after == done.after
    compile(done.after, "script", "exec")


def test_other_faults_are_mended_once_the_file_can_be_parsed():
    """T12: after the renaming the file parses and the other patches apply."""
    source = (
        'x.cuda(async=True)\nn = correct[:k].view(-1)\np.add_argument("--local_rank", default=0)\n'
    )
    done = run(source)
    assert done.after.decode() == (
        "import os\nx.cuda(non_blocking=True)\nn = correct[:k].reshape(-1)\n"
        'p.add_argument("--local_rank", default=int(os.environ.get("LOCAL_RANK", 0)))\n'
    )
    assert [(f.patch, f.line, f.column) for f in done.findings] == [
        ("async_keyword", 1, 8), ("reshape_topk", 2, 5), ("local_rank_from_env", 3, 1)
    ]  # fmt: skip


SAID = [  # what stays unparsable, the line at fault and words that say why
    ("start(async=True)\nx.cuda()\n", 1, "`async` is a keyword"),
    ("x.cuda(async=True)\nstart(async=True)\n", 2, "`async` is a keyword"),
    ("x.cuda(start(async=True))\n", 1, "`async` is a keyword"),
    ("cuda(async=True)\n", 1, "`async` is a keyword"),
    ("class A:\n    def cuda(self, async=False):\n        pass\n", 2, "`async` is a keyword"),
    ("x.cuda()\nasync = True\n", 2, "`async` is a keyword"),
    ("x.cuda(async=True)\nx.async = True\n", 2, "`async` is a keyword"),
    ("x.cuda(async=True)\nprint 'x'\n", 2, "Missing parentheses"),
    ("x.cuda(async=True, non_blocking=True)\n", 1, "repeated"),
    ("x.cuda(async=True\n", 1, "never closed"),
]


@pytest.mark.parametrize("source, line, why", SAID)
def test_file_that_still_cannot_be_parsed_is_left_and_said_by_name(source, line, why):
    """T12: `async=` elsewhere is said by name, and a file with another fault stays as it is."""
    done = run(source)
    assert done.after == done.before
    assert not done.findings
    assert done.problem.line == line
    assert "cannot parse: " in done.problem.message and why in done.problem.message


def test_word_is_said_where_the_patch_is_not_selected():
    """T12: without the patch the file is left, and the word at fault is named."""
    done = run("x.cuda(async=True)\nn = correct[:k].view(-1)\n", "reshape_topk")
    assert done.after == done.before
    assert "`async` is a keyword since Python 3.7" in done.problem.message


@pytest.mark.parametrize(
    "source",
    [
        "print 'cuda', 1  # async=True",
        "print 'x.cuda( async=True)'",
        "async def f():\n    x.cuda()  # async=True",
        "x.cuda(is_async=True)",
        "x.cuda(non_blocking=True)  # not async=True",
    ],
)
def test_word_in_a_comment_or_a_string_is_not_spoken_of(source):
    """T12: a file that names nothing `async` is neither parsed nor spoken of for its sake."""
    done = run(source)
    assert (done.after, done.findings, done.problem) == (done.before, (), None)
