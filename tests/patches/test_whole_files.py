"""A checkpoint that cannot be written leaves the files that were there."""

import tempfile
from pathlib import Path

import pytest
import torch


def serves(distributed, dataparallel, monkeypatch):
    def fails(state, path):
        Path(path).write_bytes(b"half of it")
        raise RuntimeError("file write failed")

    for module in (distributed, dataparallel):
        monkeypatch.chdir(tempfile.mkdtemp())
        module.save_checkpoint({"epoch": 1}, True)
        module.save_checkpoint({"epoch": 2}, False)
        with monkeypatch.context() as context:
            context.setattr("torch.save", fails)
            with pytest.raises(SystemExit):
                module.save_checkpoint({"epoch": 3}, True)
        left = {path.name: torch.load(path, weights_only=True) for path in Path.cwd().iterdir()}
        assert left == {
            "checkpoint.pth.tar": {"epoch": 2},
            "checkpoint_previous.pth.tar": {"epoch": 1},
            "model_best.pth.tar": {"epoch": 1},
        }
