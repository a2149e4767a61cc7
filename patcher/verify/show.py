"""Findings as a table for a person, json for a program, or junit for a CI server."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO
from xml.etree import ElementTree

from patcher.verify.findings import Check, Standing

if TYPE_CHECKING:
    from rich.status import Status

STYLES = {"fine": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


def code(findings: Iterable[Check]) -> int:
    return int(any(finding.state is Standing.FAILED for finding in findings))


def summary(findings: Sequence[Check], seconds: float) -> str:
    counts = Counter(finding.state for finding in findings)
    said = [f"{counts[state]} {state.value}" for state in Standing if counts[state]]
    verdict = "something is wrong" if code(findings) else "the scripts train here"
    return f"verify: {verdict}: {', '.join(said)}, in {seconds:.0f} s"


def as_json(findings: Sequence[Check], seconds: float) -> str:
    rows = [{**asdict(finding), "state": finding.state.value} for finding in findings]
    data = {"command": "verify", "exit": code(findings), "seconds": round(seconds, 1)}
    return json.dumps({**data, "findings": rows}, indent=1)


def as_junit(findings: Sequence[Check], seconds: float) -> str:
    counts = Counter(finding.state for finding in findings)
    numbers = {
        "name": "patcher verify",
        "tests": len(findings),
        "failures": counts[Standing.FAILED],
        "skipped": counts[Standing.SKIPPED],
        "errors": 0,
        "time": round(seconds, 1),
    }
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", {k: str(v) for k, v in numbers.items()})
    for finding in findings:
        names = {"classname": f"verify.{finding.group}", "name": finding.name}
        case = ElementTree.SubElement(suite, "testcase", names)
        if finding.state is Standing.FAILED:
            ElementTree.SubElement(case, "failure", message=finding.message).text = finding.hint
        elif finding.state is Standing.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=finding.message)
        else:
            said = f"{finding.state.value}: {finding.message}\n{finding.hint}".strip()
            ElementTree.SubElement(case, "system-out").text = said
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, "unicode")


class Screen:
    """Says where the work is, and prints findings.

    On a terminal with rich: one line that moves, and a table at the end. Else a line a finding, as
    soon as there is one.
    """

    def __init__(self, stream: TextIO):
        self.stream, self.group = stream, ""
        self.status: Status | None = None
        if stream.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console

                self.status = Console(file=stream, emoji=False).status("starting")

    def __enter__(self) -> Screen:
        if self.status:
            self.status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.status:
            self.status.stop()

    def tell(self, where: str) -> None:
        if self.status:
            from rich.text import Text

            self.status.update(Text(where))

    def add(self, finding: Check) -> None:
        if self.status:
            return
        if finding.group != self.group:
            self.group = finding.group
            print(finding.group, file=self.stream)
        row = f"  {finding.state.value:8} {finding.name:24} {finding.message}"
        print(row, file=self.stream)
        if finding.hint:
            print(f"{'':36}{finding.hint}", file=self.stream)
        self.stream.flush()

    def end(self, findings: Sequence[Check], seconds: float) -> None:
        last, style = summary(findings, seconds), "bold red" if code(findings) else "bold green"
        if not self.status:
            print(last, file=self.stream)
            return
        from rich.table import Table
        from rich.text import Text

        self.status.stop()
        table, group = Table("", "", "", box=None, show_header=False), ""
        for finding in findings:
            if finding.group != group:
                group = finding.group
                table.add_row(Text(group, style="bold"))
            state = finding.state.value
            said = Text(finding.message)
            if finding.hint:
                said.append(f"\n{finding.hint}", style="dim")
            table.add_row(Text(f"  {finding.name}"), Text(state, style=STYLES[state]), said)
        self.status.console.print(table)
        self.status.console.print(Text(last, style=style))
