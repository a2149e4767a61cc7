"""Options reach the model, and GoogLeNet trains; `test_support_model_options.py` has the rest."""

import torch
from builds import parse


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        args = parse(module, monkeypatch, "--arch", "squeezenet1_1", "--dropout", "0.25")
        drops = [one.p for one in module.network.build(args).modules() if hasattr(one, "p")]
        assert drops == [0.25]
        args = parse(module, monkeypatch, "--arch", "googlenet")
        scores = module.network.build(args).train()(torch.zeros(2, 3, 64, 64))
        assert scores.shape == (2, 3)
