"""Both scripts validate on a machine without a GPU."""

import argparse

import torch
from builds import call, play_other_ranks


def serves(distributed, dataparallel, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    play_other_ranks(monkeypatch)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 10))
    batch = (torch.randn(1, 3, 2, 2), torch.arange(1))  # the fault of `view` hides at one image
    device = dataparallel.devices.home(argparse.Namespace(device=None), [])
    both = dataparallel.devices.data_parallel(model, [], device)
    args = argparse.Namespace(print_freq=1, local_rank=0, nprocs=1, evaluate=True)
    for module, one in ((dataparallel, both), (distributed, model)):
        given = {"device": device, "args": args, "run": argparse.Namespace(args=args)}
        call(module.validate, [batch], one, torch.nn.CrossEntropyLoss(), **given)
