"""Top-5 of three classes is a hit, not a crash."""

import torch


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for label in range(3):
            scores, target = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([label])
            acc1, acc5 = module.accuracy(scores, target, topk=(1, 5))
            assert (acc1.item(), acc5.item()) == (100 * (label == 0), 100)
