"""How batches are loaded: by how many workers, and which images are for this rank."""

import contextlib
import os
import resource
import signal
import threading

import torch.distributed as dist

from . import ranks, stop
from .terminal import exit_with_error


def check(args):
    """Settle `args.workers`, and let this process open the files that so many workers need.

    Call it after the launch: only then it is known of how many processes this host has its share.
    """
    if args.workers is None:
        args.workers = default_workers()
    if args.workers == 0:
        return
    # Measured with both loaders: 7 to 12 for each worker, 24 to 28 for the process itself.
    needed = 32 + 12 * args.workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a system may have a lower limit of its own
        # CUDA and NCCL open files too, and nobody says how many.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, needed + 1000)), hard))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < needed:
        fitting = max(0, (allowed - 32) // 12)
        exit_with_error(
            f"--workers {args.workers}: needs {needed} open files, and this process may have "
            f"{allowed}; use -j {fitting}, or allow more with ulimit -n {needed}"
        )


def default_workers() -> int:
    """A fair share of the cores: those that this process may use, over the processes of the node.

    A share, because each of these loads data itself. At most 16, because each worker holds batches
    in memory and in /dev/shm. At least one, so that loading goes on during a step.
    """
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        # What a container may use; the affinity does not tell.
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):
        pass  # no such limit
    return max(1, min(16, cores // ranks.local_world_size()))


def split_batch(batch_size: int) -> int:
    """The images of this process in a step, if its node takes `batch_size` in all.

    A remainder would be lost, and the run would not be the one that was asked for: it ends.
    """
    processes = ranks.local_world_size()
    rest = batch_size % processes
    if batch_size < processes:
        exit_with_error(
            f"--batch-size {batch_size}: fewer images than the {processes} processes of this node"
        )
    if rest:
        lower = batch_size - rest
        exit_with_error(
            f"--batch-size {batch_size}: does not divide by the {processes} processes of this "
            f"node; {lower} and {lower + processes} do"
        )
    return batch_size // processes


def rank_slice(dataset) -> range:
    """The indices of the images that this rank validates: in order, and each on one rank only.

    Nothing is added to make the slices equally long, so a rank may have fewer batches than others,
    or none.
    """
    return range(dist.get_rank(), len(dataset), dist.get_world_size())


def outlive_signals(worker):
    """Let a loading process go on at signals that end the job: the step at hand still needs it.

    Launchers send them to every process they find. A worker ends when its own process tells it to,
    and with that process. A `worker_init_fn`; `worker` is its number.
    """
    for number in stop.numbers():
        if number != signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # else nothing tells who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=end_for, args=(os.getppid(),), daemon=True).start()


def end_for(parent):
    """End this process when `parent` sends SIGTERM, and not when others do."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
