"""Both loaders have as many workers as --workers says, and keep them."""

import itertools

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module, workers in itertools.product((distributed, dataparallel), (0, 3)):
        for loader in run_worker(module, monkeypatch, "-j", str(workers)).loaders:
            assert loader.num_workers == workers
            assert loader.persistent_workers == (workers > 0)
