"""Inserted by `rank_zero`."""

import os


def is_rank_zero():
    """Whether this is the one process of the job that prints and writes: rank 0 of all hosts."""
    return int(os.environ.get('RANK', 0)) == 0


def print_once(*args):
    """Print on rank 0 alone, at once even into a pipe."""
    if is_rank_zero():
        print(*args, flush=True)
