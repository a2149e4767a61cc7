"""metrics.jsonl has a line for each one of training that is printed, and one for a validation."""

import json
from pathlib import Path

import torch
from builds import guesses, run_loop


def serves(distributed, dataparallel, monkeypatch):
    """Of 20 steps, the first and the tenth are printed; half of the images are right."""
    for module in (distributed, dataparallel):
        Path("metrics.jsonl").unlink(missing_ok=True)
        model = torch.nn.Linear(6, 6)
        torch.nn.init.eye_(model.weight)
        run_loop(module, "train", monkeypatch, model, guesses([4] * 20, [2] * 20))
        run_loop(module, "validate", monkeypatch, model, guesses([4] * 3, [1] * 3))
        assert Path("metrics.jsonl").exists()
        lines = [json.loads(line) for line in Path("metrics.jsonl").read_text().splitlines()]
        assert [line.get("step", line["kind"]) for line in lines] == [0, 10, "val"]
        assert [line["lr"] for line in lines[:2]] == [0.25, 0.25] or module.parser.get_default(
            "opt"
        )
        assert lines[0]["acc1"] == 50.0 and lines[2]["images"] == 12
