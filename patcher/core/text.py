"""What can be said about the bytes of a script before anything is changed: do they decode, do they compile."""

from __future__ import annotations

import io
import tokenize
import warnings

from patcher.core.problem import Problem


def compile_check(file: str, source: bytes) -> None:
    """Raise Problem where this Python does not compile `source`."""
    encoding_of(file, source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # what Python thinks of upstream's style is not the point
            compile(source, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise unreadable(file, error.lineno or 0, error.offset or 0, error.msg) from None


def encoding_of(file: str, source: bytes) -> str:
    """The encoding that Python reads `source` in (`utf-8-sig` behind a BOM); raise Problem where it cannot."""
    encoding, why = "utf-8", None
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        source.decode(encoding)
    except UnicodeDecodeError:
        pass
    except (
        SyntaxError,
        LookupError,
    ) as error:  # a cookie that names no encoding or not that of the BOM; or no text
        encoding, why = "utf-8", str(error)
    try:
        source.decode(encoding)
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise unreadable(
            file, line, 0, f"not {encoding}: byte 0x{source[error.start]:02x}"
        ) from None
    if why:
        raise unreadable(file, 1, 0, why)
    if b"\0" in source:
        line = source.partition(b"\0")[0].count(b"\n") + 1
        raise unreadable(file, line, 0, "source code cannot contain null bytes")
    return encoding


def unreadable(file: str, line: int, column: int, why: str) -> Problem:
    return Problem(
        f"cannot parse: {why}",
        file=file,
        line=line,
        column=column,
        hint="Mend the file; nothing was written.",
        code=2,
    )
