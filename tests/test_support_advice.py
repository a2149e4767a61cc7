"""The line that recommends distributed.py: who gets it, and the command in it."""

import re
import shlex

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from patches.support import advice  # noqa: E402


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch):
    """A host with four GPUs, all of them visible, and no launcher."""
    for name in ("RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)


def parallel(*gpus):
    """A model that says it is on these GPUs."""
    model = nn.DataParallel(nn.Linear(2, 2))
    model.device_ids = list(gpus)
    return model


def line(capsys, model) -> str:
    advice.recommend_ddp(model)
    return capsys.readouterr().out


def command(said: str) -> "list[str]":
    """The words of the command in the line."""
    return shlex.split(re.findall(r"--gpus: (.*?); ", said)[0])


def test_several_gpus_get_one_line_with_reason_and_command(capsys):
    said = line(capsys, parallel(0, 1, 2, 3))
    assert said.count("\n") == 1 and "each step copies the weights to each" in said
    assert command(said) == ["torchrun", "--nproc_per_node=4", "distributed.py"]


@pytest.mark.parametrize(
    "model",
    [parallel(0), parallel(3), nn.Sequential(nn.Linear(2, 2)), nn.DataParallel(nn.Linear(2, 2))],
    ids=["one GPU", "another one", "no GPU", "none found"],
)
def test_nobody_else_does(model, capsys):
    assert line(capsys, model) == ""


def test_a_wrapper_around_it_makes_no_difference(capsys):
    assert "--nproc_per_node=2 " in line(capsys, nn.Sequential(parallel(0, 1)))


@pytest.mark.parametrize(
    "visible, gpus, expected",
    [
        (None, (0, 2), "0,2"),
        (None, (3, 1), "3,1"),
        ("4,5,6,7", (1, 2), "5,6"),
        ("GPU-a, GPU-b,GPU-c,GPU-d", (0, 1), "GPU-a,GPU-b"),
        ("4,5,6,7", (0, 1, 2, 3), None),
    ],
)
def test_the_command_sees_the_same_gpus(visible, gpus, expected, capsys, monkeypatch):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    first = command(line(capsys, parallel(*gpus)))[0]
    assert first == (f"CUDA_VISIBLE_DEVICES={expected}" if expected else "torchrun")
