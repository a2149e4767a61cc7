"""Unified diffs over bytes, in the dialect that git, patch and quilt read."""

from __future__ import annotations


def diff(before: bytes | None, after: bytes, old: str, new: str) -> bytes:
    """The diff from `before` to `after`, headed by the names `old` and `new`; empty where they are equal.

    `before` is None where there was no file; `old` is then `/dev/null`.  Lines end at `\\n` alone, whatever
    other line breaks stand in them, and a missing final newline is marked as such.
    """
    import difflib

    if before is None and not after:  # it has no line that a hunk could add: only git's own header can say it
        return f"diff --git a/{new.partition('/')[2]} {new}\nnew file mode 100644\n".encode()
    old = "/dev/null" if before is None else old
    found = difflib.diff_bytes(difflib.unified_diff, lines(before or b""), lines(after), old.encode(), new.encode())
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in found)


def lines(source: bytes) -> list[bytes]:
    """Lines with their ends; unlike `splitlines`, which also splits at a form feed or a lone carriage return."""
    found = [line + b"\n" for line in source.split(b"\n")]
    found[-1] = found[-1][:-1]
    return found if found[-1] else found[:-1]
