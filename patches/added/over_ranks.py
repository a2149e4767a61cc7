"""Inserted by `train_meters`."""

import torch
import torch.distributed as dist


def over_ranks(progress):
    """`progress`, ready for a line: newest values and averages over all samples of all ranks, in one reduction.

    All ranks come here in the same steps, with as many samples each, as their sampler sees to. The sums stay those
    of this rank and go on. A meter that does not measure on the device, such as a time, stays as it is.
    """
    meters = [meter for meter in progress.meters if isinstance(meter.sum, torch.Tensor)]
    if meters:
        numbers = torch.stack([torch.stack([meter.val, meter.sum, torch.full_like(meter.sum, meter.count)])
                               for meter in meters])
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if world > 1:
            dist.all_reduce(numbers)
        for meter, (value, total, count) in zip(meters, numbers.tolist()):
            meter.val, meter.avg = value / world, total / count
    return progress
