"""What a command found, as text for a person, json for a program, or annotations for GitHub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from patcher.core.problem import Problem, annotation, escaped

if TYPE_CHECKING:
    from rich.console import Console

    from patcher.core.truth import Outcome

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
    next_steps: Sequence[str] = ()  # said after all else, to a person
    tables: Mapping[str, Sequence[Outcome]] = field(default_factory=dict)  # by series, if several
    facts: Mapping[str, object] = field(default_factory=dict)  # more for json
    root: str = ""  # the project, if it is not the working directory

    @property
    def code(self) -> int:
        """The exit status: that of the gravest problem."""
        return max((problem.code for problem in self.problems), default=0)


HEAD = ("patch", "series", "state", "sites", "what it does")


def text(report: Report, verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Lines and their styles; what is clean is left out unless `verbose`."""
    if report.root:
        yield f"project {report.root}", ""
    yield from ((note, "") for note in report.notes)
    yield from _table(report.series, report.outcomes, verbose)
    for series, outcomes in report.tables.items():
        yield from _table(series, outcomes, True)
    if report.rows:
        table = [HEAD, *(_cells(row) for row in report.rows)]
        widths = [max(map(len, column)) for column in zip(*table)]
        for cells in table:
            style = "bold" if cells is HEAD else STYLES.get(cells[2], "")
            yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip(), style
    for problem in report.problems:
        yield f"{problem.level}: {problem}", STYLES[problem.level]
        for line in problem.hint.split("\n") if problem.hint else ():
            yield f"  {line}".rstrip(), ""
    if report.summary:
        yield report.summary, "bold"
    yield from ((line, "") for line in report.next_steps)


def _table(series: str, outcomes: Sequence[Outcome], verbose: bool) -> Iterator[tuple[str, str]]:
    shown = [o for o in outcomes if verbose or o.verdict.value != "clean"]
    if shown:
        yield f"series {series}", "bold"
    for o in shown:
        names, files = (max(len(getattr(o, key)) for o in shown) for key in ("patch", "file"))
        row = f"  {o.patch:{names}}  {o.file:{files}}  {o.verdict.value:8}  {_found(o)}"
        yield row.rstrip(), STYLES[o.verdict.value]


def as_json(report: Report) -> str:
    keys = ("level", "file", "line", "column", "message", "hint")
    data: dict[str, object] = {
        "command": report.command,
        "exit": report.code,
        "root": report.root,
        "series": report.series,
        "summary": report.summary,
        "outcomes": [_plain(o) for o in report.outcomes],
        "problems": [{key: getattr(p, key) for key in keys} for p in report.problems],
        "changed": list(report.changed),
    }
    if report.rows:
        data["patches"] = [asdict(row) for row in report.rows]
    if report.command == "diff":
        data["diff"] = report.diff.decode("utf-8", "replace")
    if report.tables:
        data["tables"] = {s: [_plain(o) for o in found] for s, found in report.tables.items()}
    return json.dumps({**data, **report.facts}, indent=1)


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "verdict": outcome.verdict.value}


def github(report: Report) -> Iterator[str]:
    """Workflow commands: an annotation a problem, the summary a notice, the rest folded away."""
    if report.root:
        yield f"::notice title=patcher::project {escaped(report.root)}"
    if report.notes:
        yield from _folded("what arrived", map(escaped, report.notes))
    for series, outcomes in report.tables.items():
        title, *rows = (line for line, _ in _table(series, outcomes, True))
        yield from _folded(title, rows)
    for problem in report.problems:
        message = problem.message + (f"\n{problem.hint}" if problem.hint else "")
        place = (problem.file, problem.line, problem.column)
        yield annotation(problem.level, "patcher", message, *place)
    if report.summary:
        yield f"::notice title=patcher::{escaped(report.summary)}"


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (f"::group::{title}", *lines, "::endgroup::")


def markdown(report: Report) -> Iterator[str]:
    """The table of patches in `docs/patches.md`."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    for row in report.rows:
        patch, series, state, sites, summary = _cells(row)
        yield f"| `{patch}` | {series} | {state} | `{sites}` | {summary} |"


def show(lines: Iterable[tuple[str, str]], stream: TextIO) -> None:
    """Print styled lines: with rich on a terminal if it is installed, else plainly."""
    console = _console(stream)
    for line, style in lines:
        if console:
            console.print(line, style=style or None, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=stream)


def _console(stream: TextIO) -> Console | None:
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


def _places(found: Mapping[str, int]) -> str:
    return ", ".join(f"{n} in {function}" for function, n in sorted(found.items()))


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    return row.patch, ", ".join(row.series), row.state, row.sites, row.summary
