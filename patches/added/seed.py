"""Inserted by `seeded_run`."""

import os
import random


def rank_seed(seed):
    """A seed of its own for each rank, the given one for rank 0: equal ones would augment alike on all ranks.

    DistributedDataParallel gives the initial weights of rank 0 to all.
    """
    rank = int(os.environ.get('RANK', 0))
    return random.Random('{} {}'.format(seed, rank)).getrandbits(63) if rank else seed
