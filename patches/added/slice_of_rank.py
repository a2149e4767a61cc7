"""Inserted by `val_sampler`."""

import torch.distributed as dist


def slice_of_rank(dataset):
    """The indices of the images that this rank validates: in order, and each on one rank only.

    Nothing is added to make the slices equally long, so a rank may have fewer batches than others, or none.
    """
    return range(dist.get_rank(), len(dataset), dist.get_world_size())
