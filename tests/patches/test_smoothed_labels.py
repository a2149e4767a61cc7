"""The loss that `main_worker` hands to `train` smooths the labels, and in validation it does not."""

import math

import torch
from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    scores = torch.tensor([[0.0, math.log(3.0)]])  # probabilities 1/4 and 3/4
    right = torch.tensor([1])
    plain, other = math.log(4 / 3), math.log(4.0)
    for module in (distributed, dataparallel):
        for argv, share in (((), 0.0), (("--label-smoothing", "0.2"), 0.2)):
            (given,) = run_worker(module, monkeypatch, "--epochs", "1", *argv).trained
            criterion = given[2]
            smooth = (1 - share / 2) * plain + share / 2 * other
            assert abs(float(criterion(scores, right)) - smooth) < 1e-6
            with torch.no_grad():
                assert abs(float(criterion(scores, right)) - plain) < 1e-6
