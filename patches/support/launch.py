"""How this process became part of a job, and how it leaves it."""

import contextlib
import os
import re
import sys
import threading
import time

import torch.distributed as dist

from . import ending, ranks, stop
from .terminal import exit_with_error, print_once

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# What other launchers call these four, if they say them all.
LAUNCHERS = {
    "Open MPI": [f"OMPI_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
    "MVAPICH2": [f"MV2_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
    "MPICH or Intel MPI": ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
}
# A variable by which a launcher tells a process its rank; that of SLURM stands in each batch job.
A_RANK = re.compile(r"(.*_)?RANK(_?ID)?|(?!SLURM_).*_PROCID")


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

    torchrun says it there already. mpirun and srun say it in other words. Without a launcher this
    process is the whole job; a launcher that is not understood ends it. The environment wins over
    --local_rank, since some wrappers pass the same one to all processes.
    """
    env = os.environ
    launcher = settle_place(env)
    if launcher == "torch":
        complete(env, args.local_rank)
    elif launcher in LAUNCHERS:
        settle_master(env, launcher)
    elif launcher is None:
        print("no launcher: running as a single process", flush=True)
        env.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK=str(max(args.local_rank, 0)))
        env.update(LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    if not env["MASTER_PORT"].isdecimal():
        exit_with_error(f"MASTER_PORT={env['MASTER_PORT']}: expected a number")
    args.local_rank = ranks.local_rank()
    if "TORCHELASTIC_RUN_ID" in env:
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()


def launched(env) -> "str | None":
    """What has started this process: "torch", "srun" or a name in LAUNCHERS; None for nobody."""
    wrong = [f"{name}={env[name]}" for name in PLACE if not env.get(name, "0").isdecimal()]
    if wrong:
        env.update(dict.fromkeys(PLACE, "0"))  # the way out asks for them
        exit_with_error(f"{', '.join(wrong)}: expected a number")
    if "RANK" in env:
        return "torch"
    for name, variables in LAUNCHERS.items():  # before SLURM, below which mpirun may run
        if all(variable in env for variable in variables):
            return name
    if "SLURM_STEP_NUM_TASKS" in env:
        return "srun"
    for name, value in sorted(env.items()):
        if A_RANK.fullmatch(name) and name not in PLACE and value.isdecimal():
            exit_with_error(
                f"{name}={value} is set, by an unknown launcher: start this with torchrun, srun or "
                f"mpirun, set {', '.join(PLACE)}, MASTER_ADDR and MASTER_PORT, or unset it"
            )
    return None


def settle_place(env) -> "str | None":
    """Say in torchrun's variables where this process stands, and give what `launched` says."""
    launcher = launched(env)
    if launcher == "srun":
        join_slurm_step(env)
    elif launcher in LAUNCHERS:
        env.update(zip(PLACE, [env[variable] for variable in LAUNCHERS[launcher]]))
    return launcher


def complete(env, local_rank: int):
    """Say what launchers in torchrun's manner may leave out, such as PyTorchJob in Kubernetes."""
    if not {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}.issubset(env):
        exit_with_error("RANK is set: set WORLD_SIZE, MASTER_ADDR and MASTER_PORT too, or none")
    if "LOCAL_RANK" not in env and local_rank < 0:
        env.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")  # one process on each host
    env.setdefault("LOCAL_RANK", str(local_rank))
    env.setdefault("LOCAL_WORLD_SIZE", env["WORLD_SIZE"])  # old launchers: one host
    if "TORCHELASTIC_RUN_ID" in env and env.get("CUDA_VISIBLE_DEVICES", "").isdecimal():
        # --virtual-local-rank: each process has one GPU, and takes itself for the first one.
        env["LOCAL_RANK"] = str(int(env["RANK"]) % int(env["LOCAL_WORLD_SIZE"]))


def settle_master(env, launcher: str):
    """Say where the ranks of mpirun meet, if it has started them all on this host."""
    if env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"]:
        env.setdefault("MASTER_ADDR", "127.0.0.1")
        env.setdefault("MASTER_PORT", str(15000 + os.getppid() % 15000))  # mpirun, of all ranks
    elif "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        exit_with_error(
            f"mpirun of {launcher} has started this job on several hosts: pass the name of the "
            "first one in MASTER_ADDR, and a free port of it in MASTER_PORT, to all processes"
        )


def join_slurm_step(env):
    """Say in torchrun's variables what srun says in its own."""
    # OUTPUT ENVIRONMENT VARIABLES in https://slurm.schedmd.com/srun.html
    # Tasks by host, as in "4(x2),3"; hosts as in "node[07-09,12],gpu1".
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_STEP_TASKS_PER_NODE"])
    tasks = [count for count, hosts in counts for _ in range(int(hosts or 1))]
    first_host = r"([^,[]*)(?:\[([^],-]*)[^]]*\]([^,]*))?"
    name = "".join(re.findall(f"^{first_host}", env["SLURM_STEP_NODELIST"])[0])
    env.setdefault("MASTER_ADDR", name)
    env.setdefault("MASTER_PORT", str(15000 + int(env["SLURM_JOB_ID"]) % 15000))
    env.update(RANK=env["SLURM_PROCID"], WORLD_SIZE=env["SLURM_STEP_NUM_TASKS"])
    env.update(LOCAL_RANK=env["SLURM_LOCALID"], LOCAL_WORLD_SIZE=tasks[int(env["SLURM_NODEID"])])


def check_single(args):
    """End the processes of a launcher: each would train, and write the same files."""
    settle_place(os.environ)
    if ranks.world_size() > 1:
        exit_with_error(
            f"this script is one process on all GPUs, and {ranks.world_size()} were started: "
            "start it with python, or start distributed.py"
        )


def check_world(args):
    """End unless the job has --expect-world processes: its hosts may not have found each other."""
    world = ranks.world_size()
    if args.expect_world not in (None, world):
        processes = "1 process" if world == 1 else f"{world} processes"
        exit_with_error(f"--expect-world {args.expect_world}: this job has {processes}")


def print_topology(model, train_loader, val_loader, args):
    """Print one line, on rank 0: what this job is, and on what it trains. Collective.

    `args.batch_size` is that of this process. The job ends if a rank sees more images than others.
    """
    seen = ranks.gathered([len(loader.dataset) for loader in (train_loader, val_loader)])
    images = seen[0]
    for rank, others in enumerate(seen):
        if others != images:
            exit_with_error(
                f"the ranks see other images: rank 0 has {images[0]} in train/ and {images[1]} in "
                f"val/, rank {rank} {others[0]} and {others[1]}"
            )
    world, local = ranks.world_size(), ranks.local_world_size()
    print_once(
        f"topology: hosts={world // local} processes={world} per_host={local} "
        f"device={next(model.parameters()).device} batch={args.batch_size} "
        f"global_batch={args.batch_size * world} lr={args.lr} workers={args.workers} "
        f"classes={len(val_loader.dataset.classes)} images={images[0]} val_images={images[1]}"
    )


def end_with(parent):
    """Stop the job, as at a signal, once `parent`, the launcher, is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    stop.lose_launcher()


@contextlib.contextmanager
def clean_exit():
    """Leave the process group after the work; after an error of it, end the process at once.

    To leave an NCCL group takes all ranks. One that has failed would wait there for the others,
    which wait for it, and never say why.
    """
    try:
        yield
    except SystemExit as ended:
        ending.at_once(int(ended.code or 0))
    except BaseException:
        if ranks.world_size() > 1:
            # Another rank may have been stopped before the first step. Then the launcher stops
            # this one as well, and the error only says that the other one is gone.
            time.sleep(1)
        sys.excepthook(*sys.exc_info())
        ending.at_once(1)
    if ranks.has_process_group():
        # Older torch waits with Python's lock held, which its threads need for their last tensor.
        time.sleep(0.1)
        dist.destroy_process_group()
