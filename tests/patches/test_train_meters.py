"""Training reduces only the numbers that it prints, and reads none from its device before."""

import torch
from builds import guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    """Of 20 steps, the first, the tenth and the last are printed."""
    model, batches, items, item = (
        torch.nn.Linear(6, 6),
        guesses([4] * 20, [2] * 20),
        [],
        torch.Tensor.item,
    )
    monkeypatch.setattr("torch.Tensor.item", lambda self: items.append(self) or item(self))
    _, calls = run_loop(distributed, "train", monkeypatch, model, batches, ranks=2)
    assert calls.count("barrier") == 0 and calls.count("all_reduce") == 2
    run_loop(dataparallel, "train", monkeypatch, model, batches)
    assert items == []
