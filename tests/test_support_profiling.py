"""`support.profiling`: a few steps, as torch's profiler sees them."""

import argparse
import gzip
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tiny_run import new_process  # noqa: E402

from patches.support import profiling, ranks  # noqa: E402


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)
    monkeypatch.setattr(profiling, "_profile", None)
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")


def train(steps, profile, epochs=1):
    model = torch.nn.Linear(6, 6)
    for _ in range(epochs):
        profiling.begin(argparse.Namespace(profile=profile))
        for _ in range(steps):
            model(torch.rand(4, 6)).sum().backward()
            profiling.next_step()


def recorded():
    """How often the model was computed in the steps that were recorded."""
    trace = json.loads(gzip.decompress(Path("profile.json.gz").read_bytes()))
    return sum(event.get("name") == "aten::linear" for event in trace["traceEvents"])


def test_steps_after_the_first_five_are_recorded_once(capfd):
    train(steps=20, profile=3)
    assert recorded() == 3
    out = capfd.readouterr().out
    assert out.count("aten::addmm") == 1
    assert out.splitlines()[-1] == (
        f"profile of these steps: {Path('profile.json.gz').absolute()}, see https://ui.perfetto.dev"
    )
    assert [path.name for path in Path().iterdir()] == ["profile.json.gz"]


def test_short_epochs_are_recorded_together():
    train(steps=4, profile=2, epochs=2)
    assert recorded() == 2


def test_nothing_is_recorded_unless_asked_or_on_another_rank(monkeypatch):
    train(steps=9, profile=0)
    monkeypatch.setattr(ranks, "is_rank_zero", lambda: False)
    train(steps=9, profile=2)
    assert not Path("profile.json.gz").exists()
