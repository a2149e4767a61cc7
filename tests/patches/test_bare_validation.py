"""Validation calls no forward pass that waits for other ranks."""

import torch
from builds import guesses, run_loop


class Waiting(torch.nn.Module):
    """Stands for the model of several ranks, whose forward pass is one of all of them."""

    def __init__(self):
        super().__init__()
        layers = (torch.nn.Flatten(), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6))
        self.module = torch.nn.Sequential(*layers)

    def forward(self, images):
        raise AssertionError("a rank without a batch is not here")


def serves(distributed, dataparallel, monkeypatch):
    """It runs the bare model, with the buffers of rank 0."""
    sent = []

    def broadcast(tensor, source):
        sent.append((tensor.shape, source))

    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", Waiting)
    monkeypatch.setattr("torch.distributed.broadcast", broadcast)
    model = Waiting()
    run_loop(distributed, "validate", monkeypatch, model, guesses([3], [1]), ranks=2)
    assert sent == [(buffer.shape, 0) for buffer in model.buffers()]
    assert not model.training and not model.module.training
