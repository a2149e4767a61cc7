"""BatchNorm over the images of all ranks."""

import torch.nn as nn

from . import devices
from .terminal import exit_with_error, print_once


def add_options(parser):
    parser.add_argument(
        "--sync-bn",
        action="store_true",
        help="normalize over the images of all ranks, for few images a rank; on GPUs alone",
    )


def check(args):
    """End, before anything has started, if --sync-bn would train on the CPU: torch cannot."""
    if args.sync_bn and devices.device_kind(args.device)[0] == "cpu":
        exit_with_error("--sync-bn: torch has it for GPUs alone, and this job trains on the CPU")


def synchronized(model: nn.Module, args) -> nn.Module:
    """The model that DistributedDataParallel is to wrap: with --sync-bn, its layers synchronize.

    Parameters, buffers and the keys of a checkpoint stay those of BatchNorm. In training each such
    layer waits for all ranks, forward and backward; in evaluation it does not.
    """
    if not args.sync_bn:
        return model
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
        print_once(f"--sync-bn: {args.arch} has no BatchNorm, nothing changes")
        return model
    new: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return new
