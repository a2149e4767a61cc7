"""--compile: kernels that torch makes for the model at hand."""

import random
import time

import torch
import torch.nn as nn

from .network import unwrap
from .terminal import exit_with_error, print_once


def add_options(parser):
    parser.add_argument(
        "--compile",
        action="store_true",
        help="let torch compile the model: the first steps take a minute or more; made for GPUs",
    )


def begin(model: nn.Module, args):
    """With --compile: compile `model`, whatever it is wrapped in, in its first forward pass.

    The keys of a checkpoint stay the same. If torch has no compiler here, the job ends in one line.
    """
    if not args.compile:
        return
    if len(getattr(model, "device_ids", None) or ()) > 1:  # DistributedDataParallel has one
        exit_with_error(
            "--compile: torch cannot compile what DataParallel copies to several GPUs; use "
            "distributed.py, or one GPU with --gpus"
        )
    began = time.monotonic()
    problem = why_impossible(next(model.parameters()).device)
    if problem:
        exit_with_error(f"--compile: torch cannot compile here: {problem}")
    unwrap(model).compile()
    seconds = time.monotonic() - began
    print_once(
        f"compile: one layer took {seconds:.0f} s, so the first step takes longer, and so do the "
        "first ones with another batch size and of validation"
    )


def why_impossible(device: torch.device) -> "str | None":
    """Why torch cannot compile a layer, forward and backward, in one line, or None."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)
    number = random.SystemRandom().random()  # another one each time, so no cache has the kernels

    def scaled(inputs):
        return (layer(inputs) * number).exp().sum()

    try:
        torch.compile(scaled)(torch.ones(2, 4, device=device)).backward()
    except Exception as error:  # of dynamo, of a backend, of a compiler that is not there
        reason = getattr(error, "inner_exception", error)
        return f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0]}"
    return None
