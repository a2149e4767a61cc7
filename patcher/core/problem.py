"""What is said to a user when something is wrong: where, what, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence


class Problem(Exception):
    """A finding that ends a command; never shown as a traceback.

    `file` is relative to the project, `line` and `column` count from 1 (0 means
    unknown).  `code` is the exit status: 1 when a human has to look at the
    project, 2 for bad usage or an input that cannot be read, 0 for a mere warning.
    `kind` is the verdict on a patch, if it is about one.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        line: int = 0,
        column: int = 0,
        hint: str = "",
        code: int = 1,
        kind: str = "",
    ):
        super().__init__(message)
        self.message, self.file, self.line, self.column = message, file, line, column
        self.hint, self.code, self.kind = hint, code, kind

    @property
    def level(self) -> str:
        return "error" if self.code else "warning"

    @property
    def place(self) -> str:
        """`file:line:column`, as far as it is known."""
        return ":".join([self.file] + [str(n) for n in (self.line, self.column) if n])

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.file else self.message


class UsageError(Problem):
    """The command line asks for something that does not exist."""

    def __init__(self, message: str, *, file: str = "", hint: str = ""):
        super().__init__(message, file=file, hint=hint, code=2)


class Problems(Exception):
    """Several findings at once, so that the first does not hide the rest."""

    def __init__(self, problems: Sequence[Problem]):
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = list(problems)


def annotation(
    level: str, title: str, message: str, file: str = "", line: int = 0, column: int = 0
) -> str:
    """A finding as a workflow command of GitHub, which shows it beside the line it is about."""
    place = {"file": file, "line": line, "col": column, "title": title}
    properties = ",".join(f"{key}={escaped(str(v), ':,')}" for key, v in place.items() if v)
    return f"::{level} {properties}::{escaped(message)}"


def escaped(text: str, more: str = "") -> str:
    """Text as GitHub reads it in a workflow command."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
