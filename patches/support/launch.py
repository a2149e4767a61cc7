"""How this process became part of a job, and how it leaves it."""

import os
import re
import signal
import sys
import threading
import time

import torch.distributed as dist

from . import ranks
from .terminal import exit_with_error, print_once


def add_options(parser):
    parser.add_argument(
        "--expect-world",
        default=None,
        type=int,
        metavar="N",
        help="end at once unless the job has N processes on all hosts together "
        "(default: any number)",
    )


def join(args):
    """Settle in the environment which process of the job this is, and `args.local_rank` by it.

    torchrun and torch.distributed.launch have done so already. Under srun, SLURM knows. Without
    any launcher this process is the whole job. The environment wins over --local_rank, since some
    wrappers pass the same one to all processes.
    """
    env = os.environ
    if "RANK" in env:
        env.setdefault("LOCAL_RANK", str(max(args.local_rank, 0)))
    elif "SLURM_STEP_NUM_TASKS" in env:
        join_slurm_step(env)
    else:
        print("no launcher: running as a single process", flush=True)
        env.update(RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        env.update(LOCAL_RANK=str(max(args.local_rank, 0)))
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    args.local_rank = ranks.local_rank()


def join_slurm_step(env):
    """Say in torchrun's variables what srun says in its own: see OUTPUT ENVIRONMENT VARIABLES in
    https://slurm.schedmd.com/srun.html
    """
    # Tasks by host, as in "4(x2),3"; hosts as in "node[07-09,12],gpu1".
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"])
    tasks = [count for count, hosts in counts for _ in range(int(hosts or 1))]
    first_host = r"([^,[]*)(?:\[([^],-]*)[^]]*\]([^,]*))?"
    name = "".join(re.match(first_host, env["SLURM_STEP_NODELIST"]).groups(""))
    env.setdefault("MASTER_ADDR", name)
    env.setdefault("MASTER_PORT", str(15000 + int(env["SLURM_JOB_ID"]) % 15000))
    env.update(RANK=env["SLURM_PROCID"], WORLD_SIZE=env["SLURM_STEP_NUM_TASKS"])
    env.update(LOCAL_RANK=env["SLURM_LOCALID"], LOCAL_WORLD_SIZE=tasks[int(env["SLURM_NODEID"])])


def check_world(args):
    """End unless the job has --expect-world processes.

    Hosts that do not find each other would train one by one, each for itself.
    """
    world = ranks.world_size()
    if args.expect_world not in (None, world):
        processes = "1 process" if world == 1 else f"{world} processes"
        exit_with_error(f"--expect-world {args.expect_world}: this job has {processes}")


def print_topology(model, args):
    """Print one line, on rank 0: what this job is, with which batch and learning rate it trains.

    `args.batch_size` counts the images of this process in a step; global_batch those of all.
    """
    world, local = ranks.world_size(), ranks.local_world_size()
    device = next(model.parameters()).device
    print_once(
        f"topology: hosts={world // local} processes={world} per_host={local} device={device} "
        f"batch={args.batch_size} global_batch={args.batch_size * world} lr={args.lr} "
        f"workers={args.workers}"
    )


def watch_launcher():
    """From here on, end in order at SIGTERM, and when torchrun is gone."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()


def end_with(parent, patience=10):
    """End this process once `parent`, the launcher, is gone: by force after `patience` seconds."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience)  # a rank that waits for another in a collective does not see the signal
    os._exit(128 + signal.SIGTERM)


def leave_process_group():
    """Leave the process group if there is one, whichever way the work has ended."""
    if dist.is_available() and dist.is_initialized():
        # Older torch waits with Python's lock held, and its threads may need the lock to let go
        # of their last tensor.
        time.sleep(0.1)
        dist.destroy_process_group()
