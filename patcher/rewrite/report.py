"""What a `rewrite` found, as text for a person, json for a program, or annotations for GitHub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from patcher.core.problem import Problem, annotation, escaped
from patcher.rewrite.core import Finding
from patcher.rewrite.sites import State

NOTHING, UNREADABLE, FAILED = "nothing to do", "cannot parse", "failed"
STYLES = {
    "rewritten": "green",
    "needs a human": "bold red",
    UNREADABLE: "bold red",
    FAILED: "bold red",
}


class Result(NamedTuple):
    """What became of one file; `shown` is its diff, or the new text of what came from stdin."""

    file: str
    named: bool
    findings: Sequence[Finding] = ()
    problem: Problem | None = None
    changed: bool = False
    shown: bytes = b""

    @property
    def edits(self) -> Counter:
        """How many places each patch rewrites."""
        return Counter(
            finding.patch for finding in self.findings if finding.state is State.REWRITTEN
        )

    @property
    def unsure(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.state is State.HUMAN]

    @property
    def state(self) -> str:
        """The gravest of what there is to say."""
        if self.problem:
            read = self.problem.message.startswith(UNREADABLE)
            return UNREADABLE if read else FAILED if self.problem.code == 2 else State.HUMAN.value
        if self.unsure:
            return State.HUMAN.value
        return (
            State.REWRITTEN.value
            if self.changed
            else State.ALREADY.value
            if self.findings
            else NOTHING
        )


class Results(NamedTuple):
    """All results, in the order of the files, and whether they have been written.

    `base`: the folder in which the diff applies, if not this one.
    """

    write: bool
    results: Sequence[Result]
    base: str = ""

    @property
    def code(self) -> int:
        """2 where the system failed, 1 where a human has to look or a diff waits, else 0."""
        states = {result.state for result in self.results}
        if FAILED in states:
            return 2
        waits = not self.write and any(result.changed for result in self.results)
        return 1 if waits or states & {UNREADABLE, State.HUMAN.value} else 0

    @property
    def summary(self) -> str:
        states = Counter(result.state for result in self.results)
        edits = sum(sum(result.edits.values()) for result in self.results)
        changed = sum(result.changed for result in self.results)
        parts = [f"{changed} rewritten, {edits} edits" if changed else ""]
        parts += [f"{states[s]} {words}" for s, words in _WORDS.items() if states[s]]
        waits = "; nothing was written, --write does that" if changed and not self.write else ""
        waits += f"; the diff applies in {self.base}" if waits and self.base else ""
        return (
            f"{_counted(len(self.results), 'file')}: "
            + (", ".join(filter(None, parts)) or "none")
            + waits
        )


_WORDS = {
    State.ALREADY.value: "already",
    NOTHING: "nothing to do",
    State.HUMAN.value: "need a human",
    UNREADABLE: "cannot be parsed",
    FAILED: "failed",
}


def text(results: Results, verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Lines and their styles.  Of files that nobody named, those with nothing to say are only counted.

    If `verbose`, what is already right is shown too.
    """
    shown = (State.HUMAN, State.ALREADY) if verbose else (State.HUMAN,)
    for result in results.results:
        quiet = result.state in (NOTHING, State.ALREADY.value)
        if result.problem:
            yield str(result.problem), STYLES[result.state]
        elif result.changed or (quiet and result.named):
            yield f"{result.file}: {_line(result)}", STYLES.get(result.state, "")
        for finding in result.findings:
            if finding.state in shown:
                where, state = f"{result.file}:{finding.line}:{finding.column}", finding.state.value
                yield f"{where}: {state}: {finding.patch}: {finding.why}", STYLES.get(state, "")
    yield results.summary, "bold"


def as_json(results: Results) -> str:
    return json.dumps(
        {
            "command": "rewrite",
            "exit": results.code,
            "written": results.write,
            "summary": results.summary,
            "base": results.base,
            "files": [_json(result) for result in results.results],
        },
        indent=1,
    )


def github(results: Results) -> Iterator[str]:
    """Workflow commands: one annotation for each place that waits for somebody, then the summary as a notice."""
    for result in results.results:
        if result.problem:
            problem = result.problem
            yield _annotation(result.file, problem.line, problem.column, problem.message)
        for finding in result.findings:
            if finding.state is State.HUMAN:
                why = f"needs a human: {finding.patch}: {finding.why}"
                yield _annotation(result.file, finding.line, finding.column, why)
            elif finding.state is State.REWRITTEN and not results.write:
                why = f"{finding.patch}: {finding.why} after `patcher rewrite --write`"
                yield _annotation(result.file, finding.line, finding.column, why)
    yield f"::notice title=patcher::{escaped(results.summary)}"


def _line(result: Result) -> str:
    if not result.edits:
        return result.state
    each = ", ".join(f"{patch} {count}" for patch, count in result.edits.items())
    return f"rewritten {sum(result.edits.values())} ({each})"


def _json(result: Result) -> dict:
    problem = result.problem
    return {
        "file": result.file,
        "state": result.state,
        "changed": result.changed,
        "edits": dict(result.edits),
        "findings": [
            {**finding._asdict(), "state": finding.state.value} for finding in result.findings
        ],
        "problem": {key: getattr(problem, key) for key in ("line", "column", "message", "hint")}
        if problem
        else None,
        "diff": result.shown.decode("utf-8", "replace"),
    }


def _annotation(file: str, line: int, column: int, message: str) -> str:
    return annotation("error", "patcher rewrite", message, file, line, column)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
