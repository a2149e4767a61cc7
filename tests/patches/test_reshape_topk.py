"""Top-k hits are counted, though the slice of them is not contiguous."""

import torch


def serves(distributed, dataparallel, monkeypatch):
    """Half of the targets are hits among the first five; a plain recomputation says how many."""
    output, target = torch.randn(8, 1000), torch.randint(0, 1000, (8,))
    target[::2] = output[::2].argsort(descending=True)[:, 2]
    target[0] = output[0].argmax()
    ranked = output.argsort(descending=True)
    plain = [100 / 8 * sum(t in row[:k] for row, t in zip(ranked, target)) for k in (1, 5)]
    for module in (distributed, dataparallel):
        acc1, acc5 = module.accuracy(output, target, topk=(1, 5))
        assert [acc1.item(), acc5.item()] == plain
        assert acc1.item() < acc5.item()
