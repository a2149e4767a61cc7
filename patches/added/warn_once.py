"""Inserted by `printed_warnings` and `train_classes`."""

import os
import sys

from patches.added.rank_zero import is_rank_zero


def warn_once(message):
    """Print a line, by rank 0 alone: Python's own warnings name a line of the script, and `-W error` raises them."""
    if is_rank_zero():
        print('{}: warning: {}'.format(os.path.basename(sys.argv[0]), message), file=sys.stderr, flush=True)
