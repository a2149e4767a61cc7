"""--sync-bn converts the model before DDP wraps it, and is refused on the CPU."""

import contextlib
import io

import pytest
import torch
from builds import parse, run_worker


def serves(distributed, dataparallel, monkeypatch):
    with monkeypatch.context() as context:
        assert parse(distributed, context, "--sync-bn").sync_bn  # it plays four GPUs
    said = io.StringIO()
    with (
        monkeypatch.context() as context,
        contextlib.redirect_stderr(said),
        pytest.raises(SystemExit),
    ):
        parse(distributed, context, "--sync-bn", "--device", "cpu")
    assert "--sync-bn: torch has it for GPUs alone" in said.getvalue()

    converted = []
    convert = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"
    monkeypatch.setattr(convert, lambda model: converted.append(model) or model)
    monkeypatch.setattr("torch.nn.modules.batchnorm._BatchNorm", torch.nn.Linear)  # the model
    for argv, count in (((), 0), (("--sync-bn",), 1)):
        seen = run_worker(distributed, monkeypatch, *argv)
        assert len(converted) == count
    assert [*converted[0].parameters()] == seen.parameters
