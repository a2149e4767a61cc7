"""Where this process stands in the job, and what its ranks tell each other.

torchrun says it in the environment; under other launchers `launch.join` sets the same variables.
"""

import os
from typing import Any

import torch.distributed as dist


def rank() -> int:
    """The number of this process among all processes of the job."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """The number of processes in the job, on all hosts together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_rank() -> int:
    """The number of this process among those of its host."""
    return int(os.environ.get("LOCAL_RANK", 0))


def local_world_size() -> int:
    """The number of processes on this host.

    Old launchers do not say it. What they start is on one host, so it is the whole job.
    """
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def is_rank_zero() -> bool:
    """Whether this is the one process of the job that prints and writes: rank 0 of all hosts."""
    return rank() == 0


def is_first_on_host() -> bool:
    """Whether this process does what a host needs once: fetch a file, say why it ends.

    A process that is alone on its host is the first one, also if --local_rank gives it another GPU.
    """
    return local_rank() == 0 or local_world_size() == 1


def gathered(value) -> "list[Any]":
    """The values of all ranks, by rank; just this one without a process group. Collective."""
    if not has_process_group():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def broadcast(value):
    """The value that rank 0 has, on every rank; any object that can be pickled. Collective."""
    values = [value]
    if has_process_group():
        dist.broadcast_object_list(values, 0)
    return values[0]


def has_process_group() -> bool:
    return dist.is_available() and dist.is_initialized()
