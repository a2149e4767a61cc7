"""The learning rate of each step, from the epoch alone, which then has a fraction.

There is no state: nothing to save, and a run that goes on with other epochs, another batch or
another number of ranks has the right rate in its first step. torch's SequentialLR has a state, and
CosineAnnealingLR goes from each rate to the next one; after 400,000 steps it has added up as many
roundings, and a checkpoint of it keeps the old number of epochs. A test compares the two.
"""

import math

import torch.nn as nn
from torchvision.models import VisionTransformer

from .network import unwrap
from .terminal import print_once, warn

NOTHING = 1e-6  # a rate at which SGD hardly moves a weight any more


def add_options(parser):
    parser.add_argument(
        "--schedule",
        default="step",
        choices=("step", "cosine"),
        help="the learning rate after the warm-up: step, a tenth after each 30 epochs, or cosine, "
        "half a wave down to --min-lr at the end (default: step)",
    )
    parser.add_argument(
        "--warmup",
        default=0.0,
        type=float,
        metavar="E",
        help="epochs in which the learning rate grows in a line (default: 0)",
    )
    parser.add_argument(
        "--warmup-steps",
        default=0,
        type=int,
        metavar="N",
        help="the same in steps, instead of --warmup",
    )
    parser.add_argument(
        "--warmup-start",
        default=0.01,
        type=float,
        metavar="F",
        help="fraction of the learning rate in the first step of the warm-up (default: 0.01)",
    )
    parser.add_argument(
        "--min-lr",
        default=0.0,
        type=float,
        metavar="LR",
        help="the learning rate never falls below this one after the warm-up (default: 0)",
    )


def begin(model: nn.Module, train_loader, args):
    """Settle the warm-up, in epochs as `args.warmup`, and say in one line what the rate will be.

    A line warns of a VisionTransformer that is trained as upstream would train it.
    """
    if args.warmup_steps:
        args.warmup = args.warmup_steps / len(train_loader)
    if args.evaluate:
        return
    print_once(f"learning rate: {described(args)}")
    if 0 < args.epochs <= args.warmup:
        warn(f"the warm-up takes {args.warmup:g} epochs, and there are {args.epochs}: --warmup")
    plain = getattr(args, "opt", "sgd") == "sgd" and args.schedule == "step"
    if plain and isinstance(unwrap(model), VisionTransformer):
        warn(
            "a VisionTransformer learns little with --opt sgd and --schedule step"
            f"{end_of_training(args)}; --opt adamw --schedule cosine is what its recipes have"
        )


def described(args) -> str:
    """The schedule in a few words."""
    text = f"{args.lr:g}, a tenth of it after each 30 epochs"
    if args.schedule == "cosine":
        text = f"{args.lr:g}, along a cosine to {args.min_lr:g} in epoch {args.epochs}"
    elif args.min_lr:
        text += f", and never below {args.min_lr:g}"
    if args.warmup:
        first = args.lr * args.warmup_start
        text += f"; before that {args.warmup:g} epochs of warm-up, from {first:g}"
    return text


def end_of_training(args) -> str:
    """From which epoch on the steps of --schedule step are next to nothing, in a few words.

    A rate of NOTHING itself counts, whatever its last bit.
    """
    if args.min_lr > NOTHING:
        return ""
    epoch = 0
    while args.lr * 0.1 ** (epoch // 30) > NOTHING * (1 + 1e-9):
        epoch += 30
    return f": from epoch {epoch} on the learning rate is {NOTHING:g} or less"


def rate(epoch: float, args) -> float:
    """The learning rate at `epoch`: the steps done so far over the steps of one epoch.

    In the warm-up it grows in a line from --warmup-start times the rate to the rate, which the
    first step after it has. From there a cosine goes to --min-lr, which would come in the step
    after the last one. Steps are those of upstream, counted from the first epoch.
    """
    lr: float = args.lr * 0.1 ** (epoch // 30)
    if args.schedule == "cosine":
        left = args.epochs - args.warmup
        done = min((epoch - args.warmup) / left, 1) if epoch > args.warmup else 0
        lr = args.min_lr + (args.lr - args.min_lr) * (1 + math.cos(math.pi * done)) / 2
    lr = max(lr, args.min_lr)
    if epoch < args.warmup:
        start: float = args.warmup_start
        lr *= start + (1 - start) * epoch / args.warmup
    return lr
