"""Inserted by `bare_validation`."""

import torch
import torch.distributed as dist


def for_validation(model):
    """The model in evaluation mode, as a checkpoint would hold it.

    In training each rank gathers running statistics of its own, and a checkpoint has those of rank 0.
    DistributedDataParallel would send them round in the next forward pass, and wait for
    a rank that has no batch; so they are sent here, and the model is used without it.
    """
    model.eval()
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return model
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    return model.module
