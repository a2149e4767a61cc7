"""A line of training ends with the learning rate and images a second; one of validation does not."""

import re

import torch
from builds import guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        shown, written = [], module.ProgressMeter.display

        def display(self, step, *more, shown=shown, written=written):
            shown.append(more)
            written(self, step, *more)

        monkeypatch.setattr(module.ProgressMeter, "display", display)
        for loop in ("train", "validate"):
            model = torch.nn.Linear(6, 6)
            run_loop(module, loop, monkeypatch, model, guesses([4] * 9, [2] * 9))
        assert shown[1:] == [()] and len(shown[0]) == 2
        assert re.fullmatch(r"LR \d\.\d{4}e-\d\d Images/s \d+\.\d", " ".join(shown[0]))
