"""What a training leaves: its lines, its files, its checkpoint, and whether the numbers are true.

Each function returns what is wrong in one line, or nothing.
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patcher.verify.training import Training

HERE = Path(__file__).resolve().parent
# The script prints three digits after the point.
ROUNDING = 0.0005 + 1e-9


def lines(run: Training, epochs: Sequence[int], steps: int) -> str:
    """Each step of each epoch is printed once, in order, and each validation once."""
    expected = [(epoch, number) for epoch in epochs for number in range(steps)]
    printed = [(step.epoch, step.number) for step in run.steps]
    twice = [step for step, count in Counter(printed).items() if count > 1]
    if twice:
        epoch, number = twice[0]
        return f"step {number} of epoch {epoch} is printed {Counter(printed)[twice[0]]} times"
    if printed != expected:
        missing = [step for step in expected if step not in printed]
        what = f"step {missing[0][1]} of epoch {missing[0][0]} is not printed" if missing else ""
        return what or f"expected {len(expected)} lines of training, found {len(printed)}"
    if len(run.results) != len(epochs):
        return f"expected {len(epochs)} lines of validation accuracy, found {len(run.results)}"
    return next((f"the loss is {s.loss}" for s in run.steps if not math.isfinite(s.loss)), "")


def files(folder: Path, others: Sequence[str]) -> str:
    """The checkpoint and its kin are there, and nothing half-written or moved away."""
    expected = {"checkpoint.pth.tar", *others}
    may = {"checkpoint_previous.pth.tar", "model_best.pth.tar", "args.json", "metrics.jsonl"}
    found = {path.name for path in folder.iterdir()}
    if missing := sorted(expected - found):
        return f"not written: {', '.join(missing)}"
    if more := sorted(found - expected - may):
        return f"left over in the output folder: {', '.join(more)}"
    return ""


def read(checkpoint: Path, data: Path) -> dict[str, Any]:
    """What `recompute.py` finds in a checkpoint; `error` if it cannot be used."""
    command = [sys.executable, str(HERE / "recompute.py"), str(checkpoint), str(data)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no reason given"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def checkpoint(state: Mapping[str, Any], epochs: int, ranks: int) -> str:
    """It loads, and says of itself what was run."""
    if "error" in state:
        return f"does not load: {state['error']}"
    for key, expected in (("epoch", epochs), ("world_size", ranks)):
        if state[key] != expected:
            return f"{key}: expected {expected}, found {state[key]}"
    return ""


def accuracy(state: Mapping[str, Any], printed: tuple[float, float], slack: float) -> str:
    """The printed accuracies are those computed anew, but for `slack` per cent."""
    if "error" in state:
        return f"cannot be computed: {state['error']}"
    for name, said, found in zip(("Acc@1", "Acc@5"), printed, (state["acc1"], state["acc5"])):
        if abs(said - found) > slack + ROUNDING:
            return f"{name}: the script says {said:.3f}, computed anew it is {found:.3f}"
    return ""


def table(path: Path, epochs: int) -> str:
    """`dataparallel.csv`: a row for each epoch, with the date and its seconds."""
    rows = list(csv.reader(path.open(newline=""))) if path.exists() else []
    if len(rows) != epochs:
        return f"expected {epochs} rows, one an epoch, found {len(rows)}"
    for row in rows:
        try:
            good = len(row) == 2 and float(row[1]) > 0
        except ValueError:
            good = False
        if not good:
            return f"expected a date and seconds, found {','.join(row)}"
    return ""


def metrics(path: Path, epochs: int, steps: int, state: Mapping[str, Any], slack: float) -> str:
    """`metrics.jsonl`: a line for each printed step and each validation, none of them twice.

    The loss of the last validation is that computed anew, but for a share of `slack`.
    """
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found = Counter((row["kind"], row["epoch"], row.get("step")) for row in rows)
        losses = [float(row["loss"]) for row in rows if row["kind"] == "val"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"cannot be read: {error}"
    for kind, expected in (("train", epochs * steps), ("val", epochs)):
        count = sum(n for key, n in found.items() if key[0] == kind)
        distinct = sum(key[0] == kind for key in found)
        if (count, distinct) != (expected, expected):
            return f"expected {expected} lines of kind {kind}, found {count}, {distinct} different"
    if not math.isclose(losses[-1], loss := state.get("loss", losses[-1]), rel_tol=slack):
        return f"loss of the last validation: {losses[-1]:.6f}, computed anew it is {loss:.6f}"
    return ""
