"""`.cuda(async=True)` in anybody's script: a keyword since Python 3.7, so nothing is parsed.

    images = images.cuda(async=True)
    images = images.cuda(non_blocking=True)

PyTorch has called it `non_blocking` since 0.4.  There is no tree without this edit, so it looks at
tokens, and comes before all others.
"""

from __future__ import annotations

import contextlib
import io
import tokenize
from collections.abc import Iterator, Sequence

from patcher.rewrite.script import Script
from patcher.rewrite.sites import Edit, Site

NEEDLES = (
    tuple(before + b"async" + after for before in (b"(", b",", b" ", b"\t", b"\n")
          for after in (b"=", b" =")),
    (b"cuda", b".to", b"copy_"),
)  # fmt: skip
METHODS = ("cuda", "to", "copy_")
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def sites(script: Script) -> Sequence[Site]:
    """None: a script that can be parsed has no such name."""
    return ()


def edits(text: str) -> list[Edit | None]:
    """What renames each `async=` in a call of a tensor's method; None for every other `async =`."""
    found: list[Edit | None] = []
    # A second fault in the file is for the parser to tell.
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        found.extend(_edits(text))
    return found


def _edits(text: str) -> Iterator[Edit | None]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    calls: list[bool] = []  # of the open brackets: do such a method's arguments begin there?
    last = [tokenize.TokenInfo(tokenize.OP, "", (1, 0), (1, 0), "")] * 2
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NO_CODE:
            continue
        sign = token.string if token.type == tokenize.OP else ""
        if sign in ("(", "[", "{"):
            calls.append(sign == "(" and last[1].string in METHODS and last[0].string == ".")
        elif sign in (")", "]", "}"):
            del calls[-1:]
        elif sign == "=" and last[1].string == "async":
            start = starts[last[1].start[0] - 1] + last[1].start[1]
            is_argument = calls[-1:] == [True] and last[0].string in ("(", ",")
            yield Edit(start, start + len("async"), "non_blocking") if is_argument else None
        last = [last[1], token]
