"""What whoever started a job might do better."""

import os

import torch
import torch.nn as nn
from torch.nn.parallel import DataParallel

from .terminal import print_once


def recommend_ddp(model: nn.Module):
    """Print one line if DataParallel has several GPUs: distributed.py is faster, and how to run it.

    `model` is wrapped in DataParallel, perhaps under another wrapper, or it is not and all is well.
    """
    wrappers = [layer for layer in model.modules() if isinstance(layer, DataParallel)]
    gpus = wrappers[0].device_ids if wrappers else []
    if len(gpus) < 2:
        return
    print_once(
        f"faster on {len(gpus)} GPUs, with the same options but for --gpus: "
        f"{visible(gpus)}torchrun --nproc_per_node={len(gpus)} distributed.py; here one process "
        f"drives all GPUs, and each step copies the weights to each of them and gathers the "
        f"gradients on GPU {gpus[0]}"
    )


def visible(gpus: "list[int]") -> str:
    """What makes exactly `gpus` visible to a command, to be put before it; "" if they all are."""
    if sorted(gpus) == list(range(torch.cuda.device_count())):
        return ""
    names = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    chosen = [names[gpu].strip() if gpu < len(names) else str(gpu) for gpu in gpus]
    return f"CUDA_VISIBLE_DEVICES={','.join(chosen)} "
