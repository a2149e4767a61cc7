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
    """The diff from `before` to `after`, headed by the names `old` and `new`; empty if equal.

    `before` is None if there was no file; its name is then `/dev/null`.  Lines end at `\\n` alone,
    whatever other line breaks stand in them, and a missing final newline is marked as such.
    """
    import difflib

    if before is None and not after:  # no line to add: only git's own header can say it
        path = quoted(f"a/{new.partition('/')[2]}")
        return b"diff --git %s %s\nnew file mode 100644\n" % (path, quoted(new))
    source, target = _label("/dev/null" if before is None else old), _label(new)
    unified = difflib.unified_diff
    found = difflib.diff_bytes(unified, lines(before or b""), lines(after), source, target)
    end = b"\n\\ No newline at end of file\n"
    return b"".join(line if line.endswith(b"\n") else line + end for line in found)


def quoted(name: str) -> bytes:
    """A file name as git spells it: in quotes if it holds a quote, or what is no plain text."""
    raw = os.fsencode(name)
    if not UNSAFE.search(name):
        return raw
    unsafe = rb"[^ !#-\[\]-~]"
    return b'"%s"' % re.sub(unsafe, lambda m: ESCAPES.get(m[0]) or b"\\%03o" % ord(m[0]), raw)


def _label(name: str) -> bytes:
    """The name in a header; a tab ends one with blanks, because they could begin a date."""
    found = quoted(name)
    return found + b"\t" if b" " in found else found


def lines(source: bytes) -> list[bytes]:
    """Lines with their ends.

    Unlike `splitlines`, which also splits at a form feed and at a lone carriage return.
    """
    found = [line + b"\n" for line in source.split(b"\n")]
    found[-1] = found[-1][:-1]
    return found if found[-1] else found[:-1]
