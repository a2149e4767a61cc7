"""Which device each process uses, and the process group over them."""

import collections
import datetime
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn

from . import job, owner, ranks
from .terminal import exit_with_error


def add_options(parser):
    parser.add_argument(
        "--device",
        default=None,
        metavar="DEVICE",
        help="cuda, cpu or another kind of device (default: CUDA if there is any, else another "
        "accelerator, else the CPU)",
    )
    parser.add_argument(
        "--timeout",
        default=600,
        type=float,
        metavar="S",
        help="seconds without any progress after which the job ends (default: 600)",
    )


def device_kind(name: "str | None") -> "tuple[str, int]":
    """The kind of device to use and how many this process sees; the CPU has no number, so 0."""
    accelerator = getattr(torch, "accelerator", None)
    if name is None and torch.cuda.device_count() > 0:
        name = "cuda"
    elif name is None and accelerator is not None and accelerator.is_available():
        name = accelerator.current_accelerator().type
    if name in (None, "cpu"):
        return "cpu", 0
    kind, _, number = name.partition(":")
    module: Any = torch.cuda if kind == "cuda" else getattr(torch, kind, None)
    if number:
        exit_with_error(
            f"--device {name}: expected a kind of device, such as {kind}; for this one alone set "
            f"CUDA_VISIBLE_DEVICES={number}, or choose --gpus {number} for dataparallel.py"
        )
    if not hasattr(module, "device_count") or kind == "accelerator":  # that is no name of a device
        exit_with_error(f"--device {name}: this torch knows no such device; try cuda or cpu")
    count = module.device_count()
    if count == 0:
        exit_with_error(f"--device {name}: there is none here, or none is visible")
    return kind, count


def select_device(name: "str | None", index: int, processes: int = 1) -> torch.device:
    """Device number `index`, made current; `processes` on this host want one each."""
    kind, count = device_kind(name)
    if kind == "cpu":
        return torch.device("cpu")
    wanted = max(processes, index + 1)
    if wanted > count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        exit_with_error(
            f"{wanted} processes on this node, {count} GPUs visible "
            f"(CUDA_VISIBLE_DEVICES={visible}); start fewer, or let each see all GPUs of the node "
            "or one of its own"
        )
    if kind == "cuda":
        torch.cuda.set_device(index)
    elif hasattr(getattr(torch, kind), "set_device"):
        getattr(torch, kind).set_device(index)
    return torch.device(kind, index)


def select(args) -> torch.device:
    """This rank's device, made current."""
    if job.has_own_gpu():  # srun --gpus-per-task=1, torchrun --virtual-local-rank
        return select_device(args.device, 0)
    return select_device(args.device, ranks.local_rank(), ranks.local_world_size())


def init_process_group(device: torch.device, timeout: float):
    """Join the process group; `device` must be current, since NCCL's buffers go there.

    `timeout` is the --timeout in seconds.
    """
    # The watch over the ranks knows more, so it speaks first. Rank 0 may look at a lock meanwhile.
    wait = max(timeout, owner.PATIENCE) + 20
    options: dict[str, Any] = {"timeout": datetime.timedelta(seconds=wait)}
    if job.store() is not None:
        options.update(store=job.store(), rank=ranks.rank(), world_size=ranks.world_size())
    if device.type == "cuda":
        dist.init_process_group(backend="nccl", device_id=device, **options)
    else:
        dist.init_process_group(backend="gloo" if device.type == "cpu" else None, **options)


def home(args, gpus: "list[int]") -> torch.device:
    """The device that holds the model: the first of `gpus`, or any other if there are none."""
    if gpus and args.device in (None, "cuda"):
        return select_device("cuda", gpus[0])
    return select_device(args.device, 0)


def ids(device: torch.device) -> "list[torch.device] | None":
    """The `device_ids` for DistributedDataParallel: this one device; None on the CPU."""
    return [device] if device.type == "cuda" else None


def data_parallel(model: nn.Module, gpus: "list[int]", device: torch.device) -> nn.Module:
    """The model on `gpus`; on another device the same model, also under the name `module`."""
    if device.type == "cuda":
        return nn.DataParallel(model, device_ids=gpus, output_device=gpus[0])
    return nn.Sequential(collections.OrderedDict(module=model))
