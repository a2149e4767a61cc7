"""What the command line may say: each number in its range, epochs that are left, folders."""

import os

from .terminal import exit_with_error

# Least and most. The limits are generous: what is beyond them is a slip of the finger, or ends in
# the traceback of a library, or in a run that does nothing.
RANGES = {
    "accum": (1, 65536),
    "batch-size": (1, 2**20),
    "cutmix": (0, 1000),
    "dropout": (0, 1),
    "ema": (0, 1000000),
    "clip-grad": (0, 1000000),
    "epochs": (0, 1000000),
    "expect-world": (1, 1000000),
    "image-size": (1, 8192),
    "label-smoothing": (0, 1),
    "local_rank": (-1, 65535),  # -1 is upstream's default: nobody has said it
    "keep": (0, 1000000),
    "lr": (0, 1000),
    "max-steps": (0, 1000000000),
    "mixup": (0, 1000),
    "min-lr": (0, 1000),
    "momentum": (0, 1),
    "num-classes": (1, 1000000),
    "prefetch": (1, 1024),
    "print-freq": (1, 1000000000),
    "profile": (0, 1000),
    "ra-magnitude": (0, 30),
    "random-erase": (0, 1),
    "repeats": (1, 1000),
    "save-every": (0, 1000000000),
    "seed": (0, 2**63 - 1),  # what torch takes
    "skip-bad-images": (0, 1000000000),
    "start-epoch": (0, 1000000),
    "stochastic-depth": (0, 1),
    "timeout": (1, 31536000),  # seconds: a year
    "val-crop": (1, 8192),
    "val-every": (1, 1000000),
    "val-resize": (1, 8192),
    "warmup": (0, 1000000),
    "warmup-start": (0, 1),
    "warmup-steps": (0, 1000000000),
    "weight-decay": (0, 1),
    "workers": (0, 1024),
}
PATHS = ("data", "init", "output_dir", "resume")


def check(args):
    """End in one line, before anything has started, if an option makes no sense.

    A shell leaves `--data=~/x` as it is, so here ~ becomes the home folder.
    """
    for name in PATHS:
        if getattr(args, name, None):
            setattr(args, name, os.path.expanduser(getattr(args, name)))
    for option, (least, most) in RANGES.items():
        value = getattr(args, option.replace("-", "_"), None)
        if value is not None and not least <= value <= most:
            found = str(value).removesuffix(".0")  # -1 as it was given, not -1.0
            exit_with_error(f"--{option}: expected {least} to {most}, found {found}")
    if getattr(args, "warmup", 0) and getattr(args, "warmup_steps", 0):
        exit_with_error("--warmup and --warmup-steps say the same; give one of the two")
    check_epochs(args)


def check_epochs(args):
    """End unless there is an epoch to train. How far a checkpoint has come, nobody knows yet."""
    first, epochs = getattr(args, "start_epoch", 0), getattr(args, "epochs", 1)
    if first and getattr(args, "resume", None):
        exit_with_error(
            f"--start-epoch {first}: --resume begins where its checkpoint ends; give one of the two"
        )
    if first >= epochs and not getattr(args, "evaluate", False):
        start = f"--start-epoch is {first}: " if first else ""
        exit_with_error(f"--epochs {epochs}: {start}there is no epoch to train")
