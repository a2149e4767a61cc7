"""The loops get batches that are on the device, and each worker has --prefetch of them ready."""

import torch
from builds import guesses, run_loop, run_worker


class Moved:
    """Stands for `prefetch.ahead`: notes what it is given, and gives the batches as they are."""

    def __init__(self):
        self.calls = []

    def __call__(self, loader, device):
        self.calls.append((loader, device))
        return iter(loader)


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for options, depth in ((["-j", "3"], 2), (["-j", "3", "--prefetch", "5"], 5)):
            for loader in run_worker(module, monkeypatch, *options).loaders:
                assert loader.prefetch_factor == depth
        for loader in run_worker(module, monkeypatch, "-j", "0", "--prefetch", "5").loaders:
            assert loader.prefetch_factor is None
        for loop in ("train", "validate"):
            moved, batches = Moved(), guesses([4] * 3, [4, 0, 2])
            with monkeypatch.context() as context:
                context.setattr(module.prefetch, "ahead", moved)
                result, _ = run_loop(module, loop, context, torch.nn.Linear(6, 6), batches)
            assert moved.calls == [(batches, torch.device("cpu"))]
        # And as it is: the numbers are those of the batches.
        result, _ = run_loop(module, "validate", monkeypatch, torch.nn.Identity(), batches)
        assert float(result) == 50
