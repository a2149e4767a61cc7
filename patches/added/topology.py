"""Inserted by `topology_line`."""

import os

from patches.added.rank_zero import print_once


def print_topology(args):
    """One line, by rank 0: what this job is and which batch and learning rate it trains with."""
    world, local = int(os.environ.get('WORLD_SIZE', 1)), int(os.environ.get('LOCAL_WORLD_SIZE', 1))
    print_once('topology: hosts={} processes={} per_host={} device={} batch={} global_batch={} lr={} workers={}'.format(
        world // local, world, local, getattr(args, 'device', 'cuda'), args.batch_size, args.batch_size * world,
        args.lr, args.workers))
