"""The weights of a net with convolutions lie channels-last."""

import torch
from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 5, 3))
        monkeypatch.setattr(module.network, "build", lambda args, pretrained=False, net=net: net)
        first, _, second, _ = run_worker(module, monkeypatch).parameters
        for weight in (first, second):
            assert weight.is_contiguous(memory_format=torch.channels_last)
