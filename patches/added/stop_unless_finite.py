"""Inserted by `finite_loss`."""

import math

import torch
import torch.distributed as dist

from patches.added.fail import fail


def stop_unless_finite(values, first, model, optimizer, epoch):
    """End the run where one of `values`, losses of the steps from `first` on, or a weight is not finite on any rank.

    All ranks have to come here, and end together. The message names the first such step of all ranks.
    """
    found = [(step, value) for step, value in enumerate(map(float, values), first) if not math.isfinite(value)]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values()):
        found.append((math.inf, math.nan))  # later than any step
    if dist.is_available() and dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, found[:1])
        found = sorted(part[0] for part in parts if part)
    if found:
        step, value = found[0]
        what = 'epoch {}, step {}: the loss is {}'.format(epoch, step, value)
        if step == math.inf:
            what = 'epoch {}: the loss is finite, the weights are not'.format(epoch)
        fail('{} (learning rate {:g}); stopped, and the last checkpoint stays as it is'.format(
            what, optimizer.param_groups[0]['lr']))
