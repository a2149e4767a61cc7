"""Inserted by `printed_warnings` and `train_classes`."""

import os
import sys


def warn_once(message):
    """Print a line, by rank 0 alone: Python's own warnings name a line of the script, and `-W error` raises them."""
    if int(os.environ.get('RANK', 0)) == 0:
        print('{}: warning: {}'.format(os.path.basename(sys.argv[0]), message), file=sys.stderr, flush=True)
