"""With --export-weights the best weights are written alone, once they are saved."""

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        told, argv = [], ("--epochs", "2", "--export-weights")
        monkeypatch.setattr(module.exporting, "best", lambda *given, to=told: to.append(given))
        saved = run_worker(module, monkeypatch, *argv).saved
        assert [best for best, _ in told] == [best for _, best in saved] == [False, False]
        assert all(args.export_weights for _, args in told)
