"""What a command found, as text for a person, json for a program, or annotations for GitHub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from patcher.core.problem import Problem, annotation, escaped

if TYPE_CHECKING:
    from patcher.core.engine import Outcome

STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "stale": "bold red",
    "obsolete": "yellow",
    "clean": "green",
}


@dataclass(frozen=True)
class Row:
    """One patch in the listing."""

    patch: str
    series: tuple[str, ...]
    state: str
    sites: str
    summary: str


@dataclass(frozen=True)
class Report:
    """Everything that a command has to say."""

    command: str
    series: str
    outcomes: Sequence[Outcome] = ()
    problems: Sequence[Problem] = ()
    changed: Sequence[str] = ()
    rows: Sequence[Row] = ()
    summary: str = ""
    diff: bytes = b""
    notes: Sequence[str] = ()  # said before all else
    tables: Mapping[str, Sequence[Outcome]] = field(
        default_factory=dict
    )  # outcomes by series, where it is not one
    facts: Mapping[str, object] = field(default_factory=dict)  # more for json
    root: str = ""  # the project, if it is not the working directory

    @property
    def code(self) -> int:
        """The exit status: that of the gravest problem."""
        return max((problem.code for problem in self.problems), default=0)


def text(report: Report) -> Iterator[tuple[str, str]]:
    """Lines and their styles."""
    if report.root:
        yield f"project {report.root}", ""
    yield from ((note, "") for note in report.notes)
    for series, outcomes in {report.series: report.outcomes, **report.tables}.items():
        yield from _table(series, outcomes)
    if report.rows:
        table = [
            ("patch", "series", "state", "sites", "what it does"),
            *(_cells(row) for row in report.rows),
        ]
        widths = [max(len(cells[i]) for cells in table) for i in range(5)]
        for index, cells in enumerate(table):
            style = "bold" if index == 0 else STYLES.get(cells[2], "")
            yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip(), style
    for problem in report.problems:
        yield f"{problem.level}: {problem}", STYLES[problem.level]
        for line in problem.hint.split("\n") if problem.hint else ():
            yield f"  {line}".rstrip(), ""
    if report.summary:
        yield report.summary, "bold"


def _table(series: str, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    if outcomes:
        yield f"series {series}", "bold"
        names, files = (max(len(getattr(o, key)) for o in outcomes) for key in ("patch", "file"))
        for o in outcomes:
            yield (
                f"  {o.patch:{names}}  {o.file:{files}}  {o.verdict.value:8}  {_found(o)}".rstrip(),
                STYLES[o.verdict.value],
            )


def as_json(report: Report) -> str:
    problems = [
        {key: getattr(p, key) for key in ("level", "file", "line", "column", "message", "hint")}
        for p in report.problems
    ]
    outcomes = [_plain(o) for o in report.outcomes]
    data = {
        "command": report.command,
        "exit": report.code,
        "root": report.root,
        "series": report.series,
        "summary": report.summary,
        "outcomes": outcomes,
        "problems": problems,
        "changed": list(report.changed),
    }
    data |= {"patches": [asdict(row) for row in report.rows]} if report.rows else {}
    data |= {"diff": report.diff.decode("utf-8", "replace")} if report.command == "diff" else {}
    data |= (
        {"tables": {s: [_plain(o) for o in outcomes] for s, outcomes in report.tables.items()}}
        if report.tables
        else {}
    )
    return json.dumps({**data, **report.facts}, indent=1)


def _plain(outcome: Outcome) -> dict:
    return {**asdict(outcome), "verdict": outcome.verdict.value}


def github(report: Report) -> Iterator[str]:
    """Workflow commands: one annotation a problem, then the summary as a notice; what is no finding is folded away."""
    if report.root:
        yield f"::notice title=patcher::project {escaped(report.root)}"
    if report.notes:
        yield from (
            "::group::what arrived",
            *(escaped(note) for note in report.notes),
            "::endgroup::",
        )
    for series, outcomes in report.tables.items():
        title, *rows = (line for line, _ in _table(series, outcomes))
        yield from (f"::group::{title}", *rows, "::endgroup::")
    for problem in report.problems:
        message = problem.message + (f"\n{problem.hint}" if problem.hint else "")
        place = (problem.file, problem.line, problem.column)
        yield annotation(problem.level, "patcher", message, *place)
    if report.summary:
        yield f"::notice title=patcher::{escaped(report.summary)}"


def markdown(report: Report) -> Iterator[str]:
    """The patch table of the README."""
    yield "| patch | series | state | sites | what it does |"
    yield "|---|---|---|---|---|"
    for row in report.rows:
        patch, series, state, sites, summary = _cells(row)
        yield f"| `{patch}` | {series} | {state} | `{sites}` | {summary} |"


def show(lines: Iterator[tuple[str, str]], stream) -> None:
    """Print styled lines: with rich on a terminal, plainly in a pipe or where rich is not installed."""
    console = _console(stream)
    for line, style in lines:
        if console:
            console.print(line, style=style or None, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=stream)


def _console(stream):
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, emoji=False)


def _found(outcome: Outcome) -> str:
    if outcome.verdict.value == "stale":
        return f"expected {_places(outcome.expected)}; found {_places(outcome.found) or 'none'}"
    return _places(outcome.found)


def _places(found) -> str:
    return ", ".join(f"{n} in {function}" for function, n in sorted(found.items()))


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    return row.patch, ", ".join(row.series), row.state, row.sites, row.summary
