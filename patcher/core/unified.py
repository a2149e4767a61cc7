"""Unified diffs over bytes, in the dialect that git, patch and quilt read."""

from __future__ import annotations

import os
import re

UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\\ud800-\udfff]')  # the last are bytes that are no text
ESCAPES = {
    bytes([byte]): b"\\" + letter.encode()
    for byte, letter in zip(b'\a\b\t\n\v\f\r"\\', 'abtnvfr"\\')
}


def diff(before: bytes | None, after: bytes, old: str, new: str) -> bytes:
    """The diff from `before` to `after`, headed by the names `old` and `new`; empty where they are equal.

    `before` is None where there was no file; `old` is then `/dev/null`.  Lines end at `\\n` alone, whatever
    other line breaks stand in them, and a missing final newline is marked as such.
    """
    import difflib

    if (
        before is None and not after
    ):  # it has no line that a hunk could add: only git's own header can say it
        return b"diff --git %s %s\nnew file mode 100644\n" % (
            quoted(f"a/{new.partition('/')[2]}"),
            quoted(new),
        )
    names = [_label("/dev/null" if before is None else old), _label(new)]
    found = difflib.diff_bytes(difflib.unified_diff, lines(before or b""), lines(after), *names)
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in found
    )


def quoted(name: str) -> bytes:
    """A file name as git spells it: in quotes if it holds a quote, a control character or a byte that is no text."""
    raw = os.fsencode(name)
    if not UNSAFE.search(name):
        return raw
    return b'"%s"' % re.sub(
        rb"[^ !#-\[\]-~]", lambda found: ESCAPES.get(found[0]) or b"\\%03o" % ord(found[0]), raw
    )


def _label(name: str) -> bytes:
    """The name in a header; a tab ends one with blanks, because they could begin a date."""
    found = quoted(name)
    return found + b"\t" if b" " in found else found


def lines(source: bytes) -> list[bytes]:
    """Lines with their ends; unlike `splitlines`, which also splits at a form feed or a lone carriage return."""
    found = [line + b"\n" for line in source.split(b"\n")]
    found[-1] = found[-1][:-1]
    return found if found[-1] else found[:-1]
