"""Inserted by `node_batch`."""

import os

from patches.added.fail import fail


def split_batch(batch_size):
    """The images a step of this process, of the `batch_size` that its node takes in all.

    A remainder would be lost, and the run would not be the one that was asked for: that ends the run.
    """
    # Old launchers do not say how many processes the node has; what they start is on one node.
    processes = int(os.environ.get('LOCAL_WORLD_SIZE', os.environ.get('WORLD_SIZE', 1)))
    if batch_size < processes:
        fail('--batch-size {}: fewer images than the {} processes of this node'.format(batch_size, processes))
    if batch_size % processes:
        lower = batch_size - batch_size % processes
        fail('--batch-size {}: does not divide by the {} processes of this node; {} and {} do'.format(
            batch_size, processes, lower, lower + processes))
    return batch_size // processes
