"""`.cuda(async=True)` in anybody's script: a keyword since Python 3.7, so nothing in the file can be parsed.

    images = images.cuda(async=True)
    images = images.cuda(non_blocking=True)

PyTorch has called it `non_blocking` since 0.4.  There is no tree without this edit, so tokens are looked at instead,
and it comes before all others.
"""

from __future__ import annotations

import contextlib
import io
import tokenize
from collections.abc import Iterator, Sequence

from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site

NEEDLES = (
    tuple(
        before + b"async" + after
        for before in (b"(", b",", b" ", b"\t", b"\n")
        for after in (b"=", b" =")
    ),
    (b"cuda", b".to", b"copy_"),
)
METHODS = ("cuda", "to", "copy_")
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def sites(script: Script) -> Sequence[Site]:
    """None: a script that can be parsed has no such name."""
    return ()


def edits(text: str) -> list[Edit | None]:
    """What renames each `async=` in a call of a tensor's method; None for every other `async =`."""
    found: list[Edit | None] = []
    with contextlib.suppress(
        tokenize.TokenError, SyntaxError
    ):  # of a second fault, which parsing will tell
        found.extend(_edits(text))
    return found


def _edits(text: str) -> Iterator[Edit | None]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    calls: list[
        bool
    ] = []  # of the brackets that are open: does it begin the arguments of such a method?
    last = [tokenize.TokenInfo(tokenize.OP, "", (1, 0), (1, 0), "")] * 2
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NO_CODE:
            continue
        if token.type == tokenize.OP and token.string in ("(", "[", "{"):
            calls.append(
                token.string == "(" and last[1].string in METHODS and last[0].string == "."
            )
        elif token.type == tokenize.OP and token.string in (")", "]", "}"):
            del calls[-1:]
        elif token.string == "=" and last[1].string == "async":
            start = starts[last[1].start[0] - 1] + last[1].start[1]
            is_argument = calls[-1:] == [True] and last[0].string in ("(", ",")
            yield Edit(start, start + len("async"), "non_blocking") if is_argument else None
        last = [last[1], token]
