"""The average follows the training loop, is kept in checkpoints, and is validated after the rest."""

import torch
from builds import guesses, run_loop, run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        averaging, validated = module.averaging, []

        def versions(model, validated=validated):
            validated.append(model)
            return [model]

        for argv in ((), ("--ema", "2")):
            with monkeypatch.context() as context:
                context.setattr(averaging, "versions", versions)
                trained = run_worker(module, context, "--epochs", "2", *argv).trained
            assert validated == [given[1] for given in trained]  # once after each epoch
            validated.clear()
            assert [*trained[0][-2].kept].count("ema") == len(argv) // 2

        model = torch.nn.Linear(6, 6)
        average = averaging.Average(model, 1.0, steps=64, warmup=0)
        monkeypatch.setattr(averaging, "_average", average)
        if hasattr(module, "precision"):
            monkeypatch.setattr(module.precision, "_dtype", None)
        run_loop(module, "train", monkeypatch, model, guesses([4] * 63, [2] * 63))
        assert int(average.n_averaged) == 1
        run_loop(module, "train", monkeypatch, model, guesses([4] * 64, [2] * 64))
        assert int(average.n_averaged) == 3
        assert not torch.equal(average.module.weight, model.weight)
