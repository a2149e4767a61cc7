"""The batch is that of the node: each process gets its part of it."""

import pytest
from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    train_loader, _ = run_worker(distributed, monkeypatch, "-b", "24", rank=1, world=3).loaders
    assert train_loader.batch_size == 8
    with pytest.raises(SystemExit):
        run_worker(distributed, monkeypatch, "-b", "256", rank=1, world=3)
