"""With --keep the checkpoint after each epoch is kept, once it is saved."""

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        kept, argv = [], ("--epochs", "3", "--keep", "2")
        monkeypatch.setattr(module.output_folder, "keep", lambda *given, to=kept: to.append(given))
        assert len(run_worker(module, monkeypatch, *argv).saved) == 3
        assert kept == [(1, 2), (2, 2), (3, 2)]
