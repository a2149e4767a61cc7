"""With --max-steps a run is saved after so many steps, and has ended well."""

import pytest
import torch
from builds import guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    batches, model = guesses([4] * 9, [2] * 9), torch.nn.Linear(6, 6)
    for module in (distributed, dataparallel):
        saved = []
        monkeypatch.setattr(module, "save_checkpoint", lambda *given, to=saved: to.append(given))
        with pytest.raises(SystemExit) as ended:
            run_loop(module, "train", monkeypatch, model, batches, args={"max_steps": 3})
        ((state, best),) = saved
        assert (ended.value.code, best, state["step"]) == (0, False, 3)
