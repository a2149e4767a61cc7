"""Each step has the learning rate of --schedule, also the first one after a resume in an epoch."""

import pytest
import torch
from builds import data_set, guesses, run_loop, run_worker
from torch.optim.optimizer import register_optimizer_step_pre_hook


def rates(module, monkeypatch, *argv, done=0):
    """The learning rates of the steps of the first epoch that are left after `done` of four."""
    seen = []
    options = vars(module.parser.parse_args(["--epochs", "3", "--lr", "2", *argv]))
    begin = module.checkpoint.Run.begin_epoch

    def go_on(run, *given):
        run.images = done * 4
        return begin(run, *given)

    handle = register_optimizer_step_pre_hook(
        lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"])
    )
    try:
        with monkeypatch.context() as context:
            context.setattr(module.checkpoint.Run, "begin_epoch", go_on)
            batches = guesses([4] * 4, [2] * 4)
            run_loop(module, "train", context, torch.nn.Linear(6, 6), batches, options)
    finally:
        handle.remove()
    return seen[: 4 - done]


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        warm = rates(module, monkeypatch, "--schedule", "cosine", "--warmup", "1")
        assert warm == pytest.approx([0.02, 0.515, 1.01, 1.505])
        resumed = rates(module, monkeypatch, "--schedule", "cosine", "--warmup", "1", done=2)
        assert resumed == warm[2:]
        assert rates(module, monkeypatch) == [2.0] * 4
        argv = ("--data", data_set(), "--epochs", "1", "--warmup-steps", "5", "--overwrite")
        (given,) = run_worker(module, monkeypatch, *argv).trained
        assert given[-1].warmup == 5  # epochs: one of these has one step
