"""What the tests of `patcher.rewrite` share: tables of sources, and one script rewritten."""

from collections.abc import Sequence

from patcher.rewrite.rewrite import PATCHES, Finding, Rewritten, rewrite
from patcher.rewrite.sites import State


def table(text: str, **words: str) -> list[tuple[str, ...]]:
    r"""The rows of a table, a line each: cells with ` => ` between them, `\n` and `\t` in them.

    A long row goes on in a line that begins with `    => ` for the next cell, or with `    + `.
    `words` are replaced in each cell.
    """
    rows = []
    for line in text.strip("\n").replace("\n    => ", " => ").replace("\n    + ", "").split("\n"):
        cells = line.replace(r"\n", "\n").replace(r"\t", "\t").split(" => ")
        for word, value in words.items():
            cells = [cell.replace(word, value) for cell in cells]
        rows.append(tuple(cells))
    return rows


def run(source: str, *patches: str, both_spellings: bool = False) -> Rewritten:
    """The script with these patches, or all of them."""
    options = {"local_rank_from_env": {"both_spellings": both_spellings}}
    return rewrite("script.py", source.encode(), patches or list(PATCHES), options)


def left(source: str, *patches: str, state: State | None = None) -> Sequence[Finding]:
    """What is said of a script that has to stay: all of this state, or nothing."""
    done = run(source, *patches)
    assert (done.problem, done.after) == (None, done.before)
    assert {finding.state for finding in done.findings} == ({state} if state else set())
    return done.findings


def rewritten(source: str, *patches: str, both_spellings: bool = False) -> str:
    """The new text, which has to be one, twice the same, and with nothing left to a human."""
    for state in (State.REWRITTEN, State.ALREADY):
        done = run(source, *patches, both_spellings=both_spellings)
        assert done.problem is None
        assert {finding.state for finding in done.findings} == {state}, done.findings
        assert state is State.REWRITTEN or done.after == done.before
        source = done.after.decode()
    return source
