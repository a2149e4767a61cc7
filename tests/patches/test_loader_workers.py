"""Both loaders have as many workers as --workers says, and those of training stay."""

import itertools

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module, workers in itertools.product((distributed, dataparallel), (0, 3)):
        training, validation = run_worker(module, monkeypatch, "-j", str(workers)).loaders
        assert training.num_workers == validation.num_workers == workers
        assert training.persistent_workers == (workers > 0)
