"""--seed asks for deterministic kernels, and lets ranks draw differently."""

import torch
from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for flag in ("benchmark", "deterministic"):  # to be put back
        monkeypatch.setattr(f"torch.backends.cudnn.{flag}", False)
    monkeypatch.setattr("warnings.warn", lambda *args, **kwargs: None)
    for module in (distributed, dataparallel):
        run_worker(module, monkeypatch)
        assert torch.backends.cudnn.benchmark
        run_worker(module, monkeypatch, "--seed", "5")
        assert not torch.backends.cudnn.benchmark
    run_worker(distributed, monkeypatch, "-b", "16", "--seed", "5", rank=1, world=2)
    assert torch.initial_seed() != 5
