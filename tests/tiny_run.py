"""A run with a model of six numbers, for the tests of what it saves and goes on from."""

import argparse
from types import SimpleNamespace
from unittest import mock

import torch
import torch.multiprocessing as mp

from patches.support import files, output_folder, owner, stop
from patches.support.run import Run

DEFAULTS = {
    "data": "d",
    "arch": "tiny",
    "evaluate": False,
    "resume": None,
    "overwrite": False,
    "trust_checkpoint": False,
    "pretrained": False,
    "start_epoch": 0,
    "seed": None,
    "batch_size": 4,
    "lr": 0.1,
    "epochs": 9,
}


def new_process(tmp_path, monkeypatch):
    """One process in an empty folder, which has done nothing yet: no thread, no watch, nothing to
    do at the end.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setattr(stop, "_watch", None)
    monkeypatch.setattr(
        owner.threading, "Thread", lambda **given: SimpleNamespace(start=lambda: None)
    )
    monkeypatch.setattr(owner.ending, "at_end", lambda duty: None)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    begin_again(monkeypatch)


def begin_again(monkeypatch):
    """What this process has done counts for a process that has ended, and this one is another."""
    owner.release()
    monkeypatch.setattr(owner, "_mine", None)
    for name, empty in (("_own", {}), ("sizes", {}), ("_slow", [])):
        monkeypatch.setattr(files, name, empty)


def settings(**more):
    return argparse.Namespace(**{**DEFAULTS, **more})


def net(bias=0.0):
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, bias)
    return model


def run_of(model, optimizer=None, args=None, state=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    return Run(model, optimizer, args or settings(), state)


def state_of(model, optimizer=None, args=None, **more):
    """What the script saves after an epoch."""
    run = run_of(model, optimizer, args)
    run.best_acc1 = torch.tensor(50.0)
    own = {"epoch": 3, "arch": "tiny", "state_dict": model.state_dict(), "best_acc1": run.best_acc1}
    with mock.patch.object(
        output_folder, "check_in_place"
    ):  # it may be for another folder, or as another run
        return {**own, **run.state(), **more}


def four_keys(**more):
    """What upstream's own script saves."""
    return {
        "epoch": 2,
        "arch": "tiny",
        "state_dict": net(1.0).state_dict(),
        "best_acc1": 61.25,
        **more,
    }


def as_ranks(work, world: int, *args) -> list:
    """What `work(rank, world, *args, results)` puts into `results`, in processes of their own.

    Torch is imported once for all of them.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision"])
    results = context.SimpleQueue()
    mp.start_processes(work, (world, *args, results), world, start_method="forkserver")
    return sorted(results.get() for _ in range(world))
