"""--tensorboard: what metrics.jsonl has, as events that TensorBoard shows.

Whenever a run begins or goes on, they are written anew from that file: so no step is there twice.
"""

import glob
import importlib
import json
import os
from typing import Any

from . import ranks
from .output_folder import EVENTS, METRICS
from .terminal import exit_with_error

SHOWN = ("lr", "loss", "acc1", "acc5", "images_per_second", "data_wait", "device_memory")

_writer: Any = None
_steps = 0  # of an epoch


def add_options(parser):
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        help="also write the numbers of metrics.jsonl for TensorBoard, into the output folder; "
        "needs its package: pip install tensorboard",
    )


def check(args):
    """End, before anything has started, if there is no TensorBoard to write with."""
    if args.tensorboard and ranks.is_rank_zero():
        try:
            importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            exit_with_error(f"--tensorboard: {error}; pip install tensorboard")


def begin(args):
    """With --tensorboard: write what metrics.jsonl has so far, and go on with `add`; on rank 0."""
    global _writer
    if args.tensorboard and ranks.is_rank_zero():
        for path in glob.glob(EVENTS.format("*")):
            os.remove(path)
        tensorboard = importlib.import_module("torch.utils.tensorboard")
        suffix = EVENTS.partition("{}")[2]
        _writer = tensorboard.SummaryWriter(".", filename_suffix=suffix)
        if os.path.exists(METRICS):
            with open(METRICS, "rb") as file:
                for line in file:
                    put(json.loads(line))
        _writer.flush()


def add(entry):
    """Write a line of metrics.jsonl, too."""
    if _writer is not None:
        put(entry)
        _writer.flush()


def put(entry):
    """Each number of a line by its own name, at the number of steps that are done by then."""
    global _steps
    _steps = entry.get("steps", _steps)
    done = entry["epoch"] * _steps + entry.get("step", _steps - 1) + 1
    group = "ema" if entry.get("weights") == "ema" else entry["kind"]
    for name in SHOWN:
        if entry.get(name) is not None:
            _writer.add_scalar(f"{group}/{name}", entry[name], done, walltime=entry["time"])
