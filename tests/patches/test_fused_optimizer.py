"""One kernel updates all weights, also with the momentum of a checkpoint in another layout."""

import torch
from builds import data_set, run_worker


def serves(distributed, dataparallel, monkeypatch):
    data = ("--data", data_set())
    for module in (distributed, dataparallel):
        monkeypatch.setattr(
            module.network, "build", lambda args, pretrained=False: torch.nn.Conv2d(3, 4, 3)
        )
        (state, _), *_ = run_worker(module, monkeypatch, *data, "--epochs", "1").saved
        momentum = torch.rand(4, 3, 3, 3).to(memory_format=torch.channels_last)
        state["optimizer"]["state"] = {0: {"momentum_buffer": momentum}}
        torch.save(state, "old.pth.tar")
        argv = (*data, "--epochs", "2", "--resume", "old.pth.tar")
        optimizer = run_worker(module, monkeypatch, *argv).trained[0][3]
        assert optimizer.param_groups[0]["fused"] is True
        ((weight, kept),) = optimizer.state.items()
        assert torch.equal(kept["momentum_buffer"], momentum)
        assert kept["momentum_buffer"].stride() == weight.stride()
