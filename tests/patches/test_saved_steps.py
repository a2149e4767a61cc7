"""A run saves within the epoch, every N steps and when it is told to stop, and then ends."""

import pytest
import torch
from builds import GoesOn, guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    batches, model = guesses([4] * 9, [2] * 9), torch.nn.Linear(6, 6)
    for module in (distributed, dataparallel):
        saved = []
        monkeypatch.setattr(module, "save_checkpoint", lambda *given, to=saved: to.append(given))
        with pytest.raises(SystemExit) as ended:
            run_loop(module, "train", monkeypatch, model, batches, watch=GoesOn(3))
        ((state, best),) = saved
        assert (ended.value.code, best) == (75, False)
        assert (state["epoch"], state["step"], state["images"]) == (0, 3, 12)
        with pytest.raises(SystemExit) as ended:
            run_loop(module, "validate", monkeypatch, model, batches, watch=GoesOn(0))
        assert (ended.value.code, len(saved)) == (75, 2)
        run_loop(module, "train", monkeypatch, model, batches, args={"save_every": 4})
        assert [state["step"] for state, _ in saved[2:]] == [4, 8]
