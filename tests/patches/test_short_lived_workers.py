"""The workers of training stay, and those of a validation end with it."""

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for workers in (0, 2):
            loaders = run_worker(module, monkeypatch, "-j", str(workers)).loaders
            assert [loader.num_workers for loader in loaders] == [workers] * 2
            training, validation = loaders
            assert training.persistent_workers == (workers > 0)
            assert not validation.persistent_workers
