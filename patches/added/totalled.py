"""Inserted by `exact_validation`."""

import torch.distributed as dist


def totalled(loader, progress):
    """The batches of `loader`; behind the last one the meters of `progress` hold the numbers of all ranks.

    They are exchanged once, in double precision, behind the loop and not in it, since ranks may have
    different numbers of batches. Accuracies are made of whole hits again: exact, however the images were split.
    """
    yield from loader
    parts = [[(float(meter.sum), meter.count) for meter in progress.meters]]
    if dist.is_available() and dist.is_initialized():
        parts = parts * dist.get_world_size()
        dist.all_gather_object(parts, parts[0])
    for meter, numbers in zip(progress.meters, zip(*parts)):
        total, meter.count = (sum(column) for column in zip(*numbers))
        meter.sum = 100.0 * round(total / 100) if meter.name.startswith('Acc') else total
        meter.avg = meter.sum / max(meter.count, 1)
