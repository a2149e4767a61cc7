"""Unified diffs over bytes, in the dialect that git, patch and quilt read."""

from __future__ import annotations


def diff(before: bytes, after: bytes, old: str, new: str) -> bytes:
    """The diff from `before` to `after`, headed by the names `old` and `new`; empty where they are equal.

    Lines end at `\\n` alone, whatever other line breaks stand in them, and a missing final
    newline is marked as such.
    """
    import difflib

    found = difflib.diff_bytes(difflib.unified_diff, lines(before), lines(after), old.encode(), new.encode())
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in found)


def lines(source: bytes) -> list[bytes]:
    """Lines with their ends; unlike `splitlines`, which also splits at a form feed or a lone carriage return."""
    found = [line + b"\n" for line in source.split(b"\n")]
    found[-1] = found[-1][:-1]
    return found if found[-1] else found[:-1]
