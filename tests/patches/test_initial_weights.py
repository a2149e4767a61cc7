"""A run starts from the weights in a file, but for a head of other classes."""

import torch
from builds import data_set, run_worker


def serves(distributed, dataparallel, monkeypatch):
    monkeypatch.setattr("torch.distributed.broadcast", lambda value, source: None)
    weight, bias = torch.randn(3, 1), torch.randn(3)
    torch.save({"weight": weight, "bias": bias}, "line.pth")
    torch.save({"weight": torch.zeros(5, 1), "bias": torch.zeros(5)}, "other.pth")
    for module in (distributed, dataparallel):
        data = ("--data", data_set())
        seen = run_worker(module, monkeypatch, *data, "--init", "line.pth")
        assert all(map(torch.equal, seen.parameters, (weight, bias)))
        seen = run_worker(module, monkeypatch, *data, "--init", "other.pth")
        assert [value.shape for value in seen.parameters] == [(3, 1), (3,)]
        assert all(value.abs().max() > 0 for value in seen.parameters)
