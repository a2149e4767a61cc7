"""The head has an output for each class of the data, or as many as --num-classes says."""

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for argv, outputs in (([], 3), (["--num-classes", "7"], 7)):
            *_, bias = run_worker(module, monkeypatch, *argv).parameters
            assert bias.shape == (outputs,)
