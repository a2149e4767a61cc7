"""With --val-every 2, of five epochs the second, the fourth and the last are validated."""

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        every = run_worker(module, monkeypatch, "--epochs", "5")
        second = run_worker(module, monkeypatch, "--epochs", "5", "--val-every", "2")
        assert [len(seen.trained) for seen in (every, second)] == [5, 5]
        assert [len(seen.validated) for seen in (every, second)] == [5, 3]
        assert [best for _, best in second.saved] == [False] * len(second.saved)
