"""Runs as their `metrics.jsonl` tells them."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patcher.build import verdicts
from patcher.core.problem import Problem, UsageError

METRICS = "metrics.jsonl"

Record = Mapping[str, object]
Curve = list[tuple[float, float]]  # epoch, value


@dataclass(frozen=True)
class RecordedRun:
    """The lines of a run: of its training as they were printed, and one for each validation."""

    name: str
    train: Sequence[Record]
    val: Sequence[Record]
    problems: Sequence[Problem]

    def curve(self, kind: str, field: str) -> Curve:
        """A value over the epochs: a line at the end of its step, a validation of its epoch."""
        if kind == "val":
            places = [(_number(line, "epoch") + 1, line) for line in self.val]
        else:
            longest = max((_number(line, "step") for line in self.train), default=0) + 1
            places = [(_place(line, longest), line) for line in self.train]
        found = [(x, _number(line, field)) for x, line in places]
        return [(x, y) for x, y in found if math.isfinite(x) and math.isfinite(y)]

    def summary(self) -> dict[str, str]:
        """The numbers that people ask for first, as text; those that the run lacks are a dash."""

        def values(kind: str, field: str) -> list[float]:
            return [y for _, y in self.curve(kind, field)]

        def said(found: Sequence[float], form: str) -> str:
            return form.format(found[0]) if found else "–"  # noqa: RUF001

        accuracies, shares = values("val", "acc1"), values("train", "data_wait")
        speeds = values("train", "images_per_second")
        return {
            "validations": str(len(self.val)),
            "last training loss": said(values("train", "loss")[-1:], "{:.4g}"),
            "last validation loss": said(values("val", "loss")[-1:], "{:.4g}"),
            "last Acc@1": said(accuracies[-1:], "{:.2f} %"),
            "best Acc@1": said(sorted(accuracies)[-1:], "{:.2f} %"),
            "images/s, median": said([statistics.median(speeds)] if speeds else [], "{:,.0f}"),
            "waiting for data": said([statistics.fmean(shares)] if shares else [], "{:.1%}"),
        }


def read_all(paths: Sequence[str]) -> list[RecordedRun]:
    """The runs in these folders, or files, each by a name that tells it from the others."""
    files = [Path(path) / METRICS if Path(path).is_dir() else Path(path) for path in paths]
    texts = [_text(path, file) for path, file in zip(paths, files)]
    return [_parsed(*found) for found in zip(_names(files), files, texts)]


def _text(path: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        hint = "Name the --output-dir of a run of series standard or up, and run it first."
        what = f"has no {METRICS}" if Path(path).is_dir() else "no such run"
        raise UsageError(what, file=path, hint=hint) from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", file=str(file)) from None


def _names(files: Sequence[Path]) -> list[str]:
    """The folder of each run without what all have in common; numbered if one is named twice."""
    folders = [file.absolute().parent for file in files]
    short = [folder.name or str(folder) for folder in folders]
    if len(set(short)) < len(short):
        above = os.path.commonpath(folders)
        short = [os.path.relpath(folder, above) for folder in folders]
    counts = [short[:at].count(name) for at, name in enumerate(short)]
    numbered = [f"{name} ({n + 1})" if n else name for name, n in zip(short, counts)]
    return list(map(verdicts.printable, numbered))


def _parsed(name: str, file: Path, text: bytes) -> RecordedRun:
    lines, problems = [], []
    whole = text.endswith(b"\n") or not text
    pieces = text.split(b"\n")
    for number, line in enumerate(pieces, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if isinstance(found, dict):
            lines.append(found)
            continue
        cut = number == len(pieces) and not whole
        what = "cut: the run is going on, or was killed" if cut else "not a JSON object"
        problems.append(Problem(f"{what}; left out", file=str(file), line=number, code=0))
    if not lines:
        problems.append(Problem("holds no line yet", file=str(file), code=0))
    train, val = ([line for line in lines if line.get("kind") == kind] for kind in ("train", "val"))
    return RecordedRun(name, train, val, problems)


def _number(line: Record, field: str) -> float:
    """A number of a line; NaN if it is null, missing or something else."""
    value = line.get(field)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _place(line: Record, longest: float) -> float:
    """The epoch at the end of a step; `longest` is the length of one that does not say its own."""
    steps = _number({"steps": longest, **line}, "steps")
    return _number(line, "epoch") + (_number(line, "step") + 1) / max(steps, 1)
