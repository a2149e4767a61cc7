"""The bytes of a script: whether they decode and compile, and where a line may be put on top."""

from __future__ import annotations

import io
import re
import tokenize
import warnings

from patcher.core.problem import Problem


def compile_check(file: str, source: bytes) -> None:
    """Raise Problem if this Python does not compile `source`."""
    encoding_of(file, source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of upstream's style
            compile(source, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise unreadable(file, error.lineno or 0, error.offset or 0, error.msg) from None


def encoding_of(file: str, source: bytes) -> str:
    """The encoding that Python reads `source` in, `utf-8-sig` after a BOM.

    Raises Problem if Python cannot read it.
    """
    encoding, why = "utf-8", ""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        source.decode(encoding)
    except UnicodeDecodeError:
        pass
    except (SyntaxError, LookupError) as error:  # the cookie: no encoding, or not that of the BOM
        encoding, why = "utf-8", str(error)
    try:
        source.decode(encoding)
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        why = f"not {encoding}: byte 0x{source[error.start]:02x}"
        raise unreadable(file, line, 0, why) from None
    if why:
        raise unreadable(file, 1, 0, why)
    if b"\0" in source:
        line = source.partition(b"\0")[0].count(b"\n") + 1
        raise unreadable(file, line, 0, "source code cannot contain null bytes")
    return encoding


def unreadable(file: str, line: int, column: int, why: str) -> Problem:
    hint, message = "Mend the file; nothing was written.", f"cannot parse: {why}"
    return Problem(message, file=file, line=line, column=column, hint=hint, code=2)


def mark(source: bytes, text: str) -> bytes:
    """Put `# text` on the first line it may have: after a BOM, a `#!` line, an encoding cookie."""
    bom = b"\xef\xbb\xbf" if source.startswith(b"\xef\xbb\xbf") else b""
    lines = source[len(bom) :].split(b"\n", 2)
    taken = 1 if lines[0].startswith(b"#!") else 0
    for index, line in enumerate(lines[:2]):
        if re.match(rb"[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+", line):
            taken = index + 1
        elif not re.match(rb"[ \t\f]*(#.*)?\r?$", line):
            break  # below code a cookie does not count
    newline = b"\r\n" if lines[0].endswith(b"\r") else b"\n"
    head = b"".join(line + b"\n" for line in lines[:taken])
    return bom + head + b"# " + text.encode("ascii") + newline + b"\n".join(lines[taken:])
