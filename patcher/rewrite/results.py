"""What a `rewrite` found, as text for a person, json for a program, or annotations for GitHub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from patcher.core.problem import Problem, annotation, escaped
from patcher.rewrite.rewrite import Finding
from patcher.rewrite.sites import State

NOTHING, UNREADABLE, FAILED = "nothing to do", "cannot parse", "failed"
REWRITTEN, ALREADY, HUMAN = (state.value for state in State)
STYLES = {REWRITTEN: "green"} | dict.fromkeys((HUMAN, UNREADABLE, FAILED), "bold red")
COUNTED = {  # states of files in the summary
    ALREADY: "already",
    NOTHING: "nothing to do",
    HUMAN: "need a human",
    UNREADABLE: "cannot be parsed",
    FAILED: "failed",
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
    def edits(self) -> Counter[str]:
        """How many places each patch rewrites."""
        return Counter(f.patch for f in self.findings if f.state is State.REWRITTEN)

    @property
    def state(self) -> str:
        """The gravest of what there is to say."""
        if self.problem and self.problem.message.startswith(UNREADABLE):
            return UNREADABLE
        if self.problem:
            return FAILED if self.problem.code == 2 else HUMAN
        if any(finding.state is State.HUMAN for finding in self.findings):
            return HUMAN
        if self.changed:
            return REWRITTEN
        return ALREADY if self.findings else NOTHING


class Results(NamedTuple):
    """All results, in the order of the files, and whether they have been written.

    `base`: the folder in which the diff applies, if not this one.
    """

    write: bool
    results: Sequence[Result]
    base: str = ""

    @property
    def code(self) -> int:
        """2 if the system failed, 1 if a human has to look or a diff waits, else 0."""
        states = {result.state for result in self.results}
        if FAILED in states:
            return 2
        waits = not self.write and any(result.changed for result in self.results)
        return int(waits or bool(states & {UNREADABLE, HUMAN}))

    @property
    def waiting(self) -> Iterator[tuple[str, str, int, int, str]]:
        """Each place that waits for somebody: patch (if any), file, line, column, what is said."""
        for file, _, findings, problem, _, _ in self.results:
            if problem:
                yield "", file, problem.line, problem.column, problem.message
            for patch, state, line, column, why in findings:
                if state is State.HUMAN:
                    yield patch, file, line, column, f"needs a human: {patch}: {why}"
                elif state is State.REWRITTEN and not self.write:
                    said = f"{patch}: {why} after `patcher rewrite --write`"
                    yield patch, file, line, column, said

    @property
    def summary(self) -> str:
        states = Counter(result.state for result in self.results)
        edits = sum(result.edits.total() for result in self.results)
        changed = sum(result.changed for result in self.results)
        done = "rewritten" if self.write else "to rewrite"
        parts = [f"{changed} {done}, {edits} edits"] if changed else []
        parts += [f"{states[state]} {words}" for state, words in COUNTED.items() if states[state]]
        files = "1 file" if len(self.results) == 1 else f"{len(self.results)} files"
        summary = f"{files}: {', '.join(parts) or 'none'}"
        if changed and not self.write:
            summary += "; nothing was written, --write does that"
            summary += f"; the diff applies in {self.base}" if self.base else ""
        return summary


def text(results: Results, verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Lines and their styles; if `verbose`, what is already right is shown too.

    Of files that nobody named, those with nothing to say are only counted.
    """
    shown = (HUMAN, ALREADY) if verbose else (HUMAN,)
    for result in results.results:
        quiet = result.state in (NOTHING, ALREADY)
        if result.problem:
            yield str(result.problem), STYLES[result.state]
        elif result.changed or (quiet and result.named):
            each = ", ".join(f"{patch} {count}" for patch, count in result.edits.items())
            verb = "rewritten" if results.write else "would rewrite"
            said = f"{verb} {result.edits.total()} ({each})" if each else result.state
            yield f"{result.file}: {said}", STYLES.get(result.state, "")
        for patch, state, line, column, why in result.findings:
            if state.value in shown:
                where = f"{result.file}:{line}:{column}: {state.value}"
                yield f"{where}: {patch}: {why}", STYLES.get(state.value, "")
    yield results.summary, "bold"


def as_json(results: Results) -> str:
    found = {
        "command": "rewrite",
        "exit": results.code,
        "written": results.write,
        "summary": results.summary,
        "base": results.base,
        "files": [_json(result) for result in results.results],
    }
    return json.dumps(found, indent=1)


def github(results: Results) -> Iterator[str]:
    """Workflow commands: an annotation for each place that waits for somebody, then the summary."""
    for _, file, line, column, message in results.waiting:
        yield annotation("error", "patcher rewrite", message, file, line, column)
    yield f"::notice title=patcher::{escaped(results.summary)}"


def _json(result: Result) -> dict[str, object]:
    problem, told = result.problem, ("line", "column", "message", "hint")
    return {
        "file": result.file,
        "state": result.state,
        "changed": result.changed,
        "edits": dict(result.edits),
        "findings": [{**f._asdict(), "state": f.state.value} for f in result.findings],
        "problem": {key: getattr(problem, key) for key in told} if problem else None,
        "diff": result.shown.decode("utf-8", "replace"),
    }
