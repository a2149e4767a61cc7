"""Inserted by `loader_workers`."""

import os


def default_workers():
    """A fair share of the cores: those that this process may use, divided by the processes of the node.

    A share, because each of these loads data itself; at most 16, because each worker holds batches in memory and
    in /dev/shm; at least one, so that loading goes on during a step.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    try:
        with open('/sys/fs/cgroup/cpu.max') as file:  # what a container may use, which the affinity does not tell
            quota, period = file.read().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):
        pass  # no such limit
    return max(1, min(16, cores // int(os.environ.get('LOCAL_WORLD_SIZE', 1))))
