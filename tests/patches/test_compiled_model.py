"""With --compile the model itself is compiled, under the keys that it has."""

import torch
from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    compiled = []
    monkeypatch.setattr("torch.compile", lambda function: function)
    monkeypatch.setattr("torch.nn.Module.compile", lambda self: compiled.append(type(self)))
    for module in (distributed, dataparallel):
        run_worker(module, monkeypatch)
        assert compiled == []
        (state, _), *_ = run_worker(module, monkeypatch, "--compile", "--epochs", "1").saved
        assert list(state["state_dict"]) == ["weight", "bias"]
        assert compiled == [torch.nn.Linear]
        compiled.clear()
