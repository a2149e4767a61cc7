"""What `verify` says: one finding for each thing that it has looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Standing(Enum):
    FINE = "fine"
    WARNING = "warning"  # it works, and could work better; the exit status stays 0
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One row of the table.  `facts` are the numbers in it, for a program."""

    group: str
    name: str
    state: Standing
    message: str
    hint: str = ""  # what to do next
    facts: Mapping[str, object] = field(default_factory=dict)


def judged(group: str, name: str, failure: str, message: str, hint: str = "") -> Check:
    """A finding that failed if `failure` says why, and else is fine."""
    if failure:
        return Check(group, name, Standing.FAILED, failure, hint)
    return Check(group, name, Standing.FINE, message)
