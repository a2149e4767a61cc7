"""Places in a script that a patch is for, and edits of its text."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from patcher.rewrite.nodes import Placed


class State(Enum):
    """What there is to say about one place that a patch is for."""

    REWRITTEN = "rewritten"
    ALREADY = "already"
    HUMAN = "needs a human"


class Edit(NamedTuple):
    """Replace the characters from `start` to `end` of a script's text."""

    start: int
    end: int
    text: str


class Site(NamedTuple):
    """One place, by its node, and what becomes of it; `imports_os` if that needs `import os`."""

    state: State
    node: Placed
    why: str = ""
    edits: Sequence[Edit] = ()
    imports_os: bool = False


class Unsure(Exception):
    """Nobody but a human can say what is right here; a recogniser raises it, with the reason."""


def apply(text: str, edits: Sequence[Edit]) -> str:
    """`text` with all of `edits`, which must not overlap; two at one place keep their order."""
    parts, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        if start < at:
            raise ValueError("two edits overlap")
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])
