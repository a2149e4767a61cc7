"""The accuracy is hits over images, to the last bit, and is reduced once."""

import torch
from builds import guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    batches = guesses([256, 256, 10], [180, 205, 9])
    for module in (distributed, dataparallel):
        acc1, _ = run_loop(module, "validate", monkeypatch, torch.nn.Identity(), batches)
        assert acc1 == 100 * (180 + 205 + 9) / 522
    model = torch.nn.Identity()
    acc1, calls = run_loop(distributed, "validate", monkeypatch, model, batches, ranks=3)
    assert acc1 == 100 * (180 + 205 + 9) / 522
    assert len(calls) == 1
