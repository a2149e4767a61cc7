"""`support.events`: the lines of metrics.jsonl, for TensorBoard."""

import argparse
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from conftest import ending  # noqa: E402

from patches.support import events  # noqa: E402

ASKED = argparse.Namespace(tensorboard=True)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setattr(events, "_writer", None)
    monkeypatch.setattr(events, "_steps", 0)


def train(epoch, step, **more):
    return {"kind": "train", "epoch": epoch, "step": step, "steps": 10, "time": 1.5, **more}


def val(epoch, weights="last", **more):
    return {"kind": "val", "epoch": epoch, "weights": weights, "time": 2.5, **more}


def shown():
    """What TensorBoard reads in the output folder: (step, value) by name."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(".").Reload()
    return {
        name: [(one.step, one.value) for one in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def test_numbers_stand_at_the_steps_that_are_done():
    pytest.importorskip("tensorboard")
    events.begin(ASKED)
    Path("events.out.tfevents.another").touch()  # of another program: it stays
    for line in (train(0, 0, lr=0.5, loss=None), train(1, 4, lr=0.25), val(1, acc1=75.0)):
        events.add(line)
    events.add(val(1, "ema", acc1=80.0))
    assert shown() == {
        "train/lr": [(1, 0.5), (15, 0.25)],
        "val/acc1": [(20, 75.0)],
        "ema/acc1": [(20, 80.0)],
    }


def test_a_resumed_run_has_each_step_once(monkeypatch):
    pytest.importorskip("tensorboard")
    events.begin(ASKED)
    for line in (train(0, 0, lr=1.0), train(0, 5, lr=1.0)):  # the latter came after the last save
        events.add(line)
    Path("metrics.jsonl").write_text(json.dumps(train(0, 0, lr=1.0)) + "\n")
    monkeypatch.setattr(events, "_writer", None)
    events.begin(ASKED)
    events.add(train(0, 5, lr=0.5))
    assert shown() == {"train/lr": [(1, 1.0), (6, 0.5)]}


def test_a_missing_package_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    error = ending(capsys, events.check, ASKED)
    assert error.startswith("train.py: error: --tensorboard: ")
    assert error.endswith("; pip install tensorboard")


def test_nothing_is_written_unless_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    args = argparse.Namespace(tensorboard=False)
    events.check(args)
    events.begin(args)
    events.add(train(0, 0, lr=1.0))
    assert not list(Path().iterdir())
