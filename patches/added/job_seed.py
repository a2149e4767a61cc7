"""Inserted by patches that let a resumed run draw the numbers that the whole one would have drawn."""

import random

import torch.distributed as dist


def job_seed(args):
    """The number from which all that the job draws in training follows: --seed, else one that rank 0 has drawn.

    All ranks have to come here when it is first asked for.
    """
    if 'job_seed' not in args:
        drawn = [random.SystemRandom().getrandbits(31) if args.seed is None else args.seed]
        if dist.is_available() and dist.is_initialized():
            dist.broadcast_object_list(drawn, 0)
        args.job_seed = drawn[0]
    return args.job_seed


def derived_seed(*parts):
    """A seed that follows from these numbers, and is like no other."""
    return random.Random(' '.join(map(str, parts))).getrandbits(63)
