"""A loss that is not a finite number ends the run."""

import pytest
import torch
from builds import guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    batches = guesses([4] * 8, [2] * 8)
    batches[3] = (batches[3][0] * float("nan"), batches[3][1])
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended:
            run_loop(module, "train", monkeypatch, torch.nn.Linear(6, 6), batches)
        assert ended.value.code == 2
