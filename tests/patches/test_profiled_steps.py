"""With --profile the profiler begins before the first step and hears of each."""

import torch
from builds import guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    batches, model = guesses([4] * 3, [2] * 3), torch.nn.Linear(6, 6)
    for module in (distributed, dataparallel):
        heard = []
        for name in ("begin", "next_step"):
            monkeypatch.setattr(
                module.profiling, name, lambda *given, to=heard, of=name: to.append((of, *given))
            )
        run_loop(module, "train", monkeypatch, model, batches, args={"profile": 2})
        assert heard[0][1].profile == 2
        assert [name for name, *_ in heard] == ["begin", *["next_step"] * 3]
