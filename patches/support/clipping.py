"""A limit for the length of the gradient of a step."""

import torch
import torch.nn as nn

from . import precision


def add_options(parser):
    parser.add_argument(
        "--clip-grad",
        default=0.0,
        type=float,
        metavar="NORM",
        help="scale the gradient of all weights together down to this norm, if it is longer "
        "(default: 0, as it is)",
    )


def step(optimizer: torch.optim.Optimizer, args):
    """`precision.step(optimizer)`, with a gradient that is no longer than --clip-grad.

    Its length is the 2-norm over all parameters of `optimizer`, without the scale of --amp fp16.
    With the gradient of DistributedDataParallel, which all ranks share, all clip alike. The host
    does not wait for the norm. If it is not finite, neither are the weights, which ends the run.
    """
    if args.clip_grad:
        precision.unscale(optimizer)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        nn.utils.clip_grad_norm_(weights, args.clip_grad)
    precision.step(optimizer)
