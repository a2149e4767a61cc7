"""metrics.jsonl in the output folder: what a run measures, one JSON object a line.

docs/training.md has the fields. A line stands in the file as soon as it is written. If the process
is killed, a resumed run cuts off what its checkpoint does not know, and writes it again: so no line
is there twice, and none is missing.
"""

import json
import math
import os
import time

import torch

from . import events, files, owner, ranks
from .output_folder import METRICS
from .terminal import exit_with_error

NAMES = {"Loss": "loss", "Acc@1": "acc1", "Acc@5": "acc5"}  # of meters, and of fields

weights = "last"  # what is validated: the weights that train, or "ema", their average


class Record:
    """What one epoch of training measures from line to line.

    `progress` is the script's, after `run.begin_epoch`; `steps` is the length of the epoch.
    """

    def __init__(self, run, progress, optimizer, steps: int):
        self.run, self.optimizer, self.steps = run, optimizer, steps
        self.epoch, self.rate = run.epoch, 0.0
        self.meters = {meter.name: meter for meter in progress.meters}
        self.sums: dict[str, tuple[float, float]] = {}  # at the line before, over all ranks
        self.marks = self.here()  # the same, for what is measured on this rank
        run.keep("metrics", self)

    def line(self, step: int):
        """Append a line. Call it in a step that prints one, after `meters.reduce`."""
        here = self.here()
        images, seconds, wait = (now - then for now, then in zip(here, self.marks))
        self.marks = here
        self.rate = images * ranks.world_size() / seconds if seconds > 0 else math.nan
        entry = {
            "kind": "train",
            "epoch": self.epoch,
            "step": step,
            "steps": self.steps,
            "lr": self.optimizer.param_groups[0]["lr"],
            **{field: number(self.mean(name)) for name, field in NAMES.items()},
            "images_per_second": number(self.rate),
            "data_wait": number(min(1.0, wait / seconds) if seconds > 0 else math.nan),
        }
        append(entry, self.run)
        if os.path.exists(METRICS) and ranks.is_rank_zero():
            files.count(METRICS)

    def rates(self) -> "tuple[str, str]":
        """Learning rate and images a second over all ranks, to be printed after `line`."""
        rate = self.optimizer.param_groups[0]["lr"]
        return f"LR {rate:.4e}", f"Images/s {self.rate:.1f}"

    def here(self) -> "tuple[float, float, float]":
        """Images, seconds, and seconds of waiting for data in this epoch, on this rank."""
        loss, step, wait = (self.meters[name] for name in ("Loss", "Time", "Data"))
        return loss.count, step.sum, wait.sum

    def mean(self, name: str) -> float:
        """The mean of a meter over all images of all ranks since the line before."""
        total, count = self.meters[name].over_ranks
        before, seen = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = total, count
        if seen >= count:  # resumed with another batch, the epoch has begun again
            before, seen = 0.0, 0.0
        return float((total - before) / (count - seen))

    def state_dict(self):
        begun = self.run.step < self.steps  # else there is no line to come
        return {"epoch": self.epoch, "sums": dict(self.sums) if begun else {}}

    def load_state_dict(self, state):
        if state["epoch"] == self.epoch:
            self.sums = dict(state["sums"])


def validated(run, progress):
    """Append a line about a validation, after `meters.total`; none with --evaluate.

    It counts once the epoch is saved: if the job is stopped before, all of the validation is done
    again.
    """
    if run.args.evaluate:
        return
    meters = {meter.name: meter for meter in progress.meters}
    images, seconds = meters["Loss"].count, meters["Time"].sum / ranks.world_size()
    entry = {
        "kind": "val",
        "epoch": run.epoch,
        "weights": weights,
        **{field: number(meters[name].avg) for name, field in NAMES.items()},
        "images": images,
        "images_per_second": number(images / seconds if seconds > 0 else math.nan),
    }
    append(entry, run)


def append(entry, run):
    """Append a line, on rank 0, as long as the folder is this job's."""
    if not ranks.is_rank_zero() or owner.is_lost():
        return
    entry |= {"device_memory": device_memory(run.model), "time": round(time.time(), 3)}
    try:
        with open(METRICS, "ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
        events.add(entry)
    except OSError as error:
        reason = f"{error.strerror}; the checkpoints stay as they are"
        exit_with_error(f"cannot write {os.path.abspath(METRICS)}: {reason}")


def device_memory(model: torch.nn.Module) -> "float | None":
    """The most MiB that torch has had on the device of the model; None if that is not counted."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    peak = getattr(getattr(torch, device.type), "max_memory_allocated", None)
    return None if device.type == "cpu" or peak is None else round(peak(device) / 2**20, 1)


def number(value: float) -> "float | None":
    """Six digits, which do not depend on the order of a sum; JSON has no NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
