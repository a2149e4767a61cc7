"""How far a run has come, and the checkpoints that it saves."""

import os
import sys
import uuid
from typing import Any

import torch.distributed as dist

from . import files, output_folder, ranks, saved, seeds, stop
from .folders import class_names
from .meters import stop_unless_finite, sums_over_ranks
from .network import unwrap
from .terminal import print_once

# The options that a checkpoint keeps.
SETTINGS: "tuple[str, ...]" = ("epochs", "batch_size", "lr", "momentum", "weight_decay")
SETTINGS += ("seed", "num_classes", "pretrained", *saved.RECIPE)
LARGE = ("state_dict", "optimizer")  # not to be held in memory twice


class Run:
    """How far a run has come, and what a checkpoint of it holds; made by `start`. Collective.

    id         uuid, kept over all resumes
    seed       seed of the job: the checkpoint's, else --seed, else drawn
    epoch      the epoch at hand; before the loop, the first one to train
    step       steps of it that are done
    steps      steps of an epoch, once one has begun
    images     images done in the unfinished epoch that was resumed, over all ranks; else 0
    sums       [sum, count] of the training meters then
    best_acc1  best validation accuracy so far, in percent
    kept       what else each checkpoint has the state of, by name; see `keep`
    found      the checkpoint that was resumed, without weights and optimizer
    """

    def __init__(self, model, optimizer, args, state=None):
        state = state or {}
        self.model, self.optimizer, self.args = model, optimizer, args
        self.id = ranks.broadcast(state.get("run") or uuid.uuid4().hex)
        self.seed = seeds.draw(state.get("seed", args.seed))
        self.epoch = self.first_epoch = state.get("epoch", args.start_epoch)
        self.step, self.images = state.get("step", 0), state.get("images", 0)
        self.steps = 0
        self.sums, self.meters = state.get("sums", []), []
        self.kept: dict[str, Any] = {}
        self.found = {name: state[name] for name in state if name not in LARGE}
        best = float(state.get("best_acc1", 0))
        self.best_acc1 = 0.0 if best > 100 else best  # upstream could save such numbers

    def state(self) -> "dict[str, Any]":
        """What a checkpoint after a whole epoch holds, but for `epoch` and `arch`.

        The run ends if the checkpoint of another one has taken the place of its own.
        """
        for path in filter(os.path.exists, files.sizes):
            files.count(path)
        return self.present()

    def present(self) -> "dict[str, Any]":
        """`state` inside an epoch: a validation that was begun is done again, so its lines go."""
        output_folder.check_in_place(self.id)
        settings = {name: getattr(self.args, name) for name in SETTINGS if name in self.args}
        return {
            "format": saved.FORMAT,
            "step": 0,
            "images": 0,
            "sums": [],
            "state_dict": unwrap(self.model).state_dict(),
            "best_acc1": float(self.best_acc1),
            "optimizer": self.optimizer.state_dict(),
            "classes": class_names(os.path.join(self.args.data, "train")),
            "args": settings,
            "seed": self.seed,
            "run": self.id,
            "world_size": ranks.world_size(),
            "appended": files.lengths(),
            **{name: thing.state_dict() for name, thing in self.kept.items()},
        }

    def keep(self, name: str, thing):
        """Save the state of `thing` too, by this name; if the checkpoint has one, load it now."""
        self.kept[name] = thing
        if name in self.found:
            thing.load_state_dict(self.found[name])

    def first_step(self, sampler_length: int, batch_size: int) -> int:
        """The steps of the present epoch that were done before: 0 unless resumed inside it.

        `sampler_length` and `batch_size` are those of one rank.
        """
        if self.epoch != self.first_epoch:
            return 0
        world = ranks.world_size()
        if self.images > world * (sampler_length - 1):  # all of them: the rest is padding
            return -(-sampler_length // batch_size)
        return int(self.images // world // batch_size)

    def begin_epoch(self, epoch: int, loader, meters) -> int:
        """The number of the first step to train; the training `meters` go on from their sums."""
        self.epoch, self.steps = epoch, len(loader)
        first = self.first_step(len(loader.sampler), loader.batch_size)
        if first and ranks.is_rank_zero():
            for meter, (total, count) in zip(meters, self.sums):
                meter.sum, meter.count, meter.avg = total, count, total / max(count, 1)
        self.reached(epoch, first, meters)
        return first

    def reached(self, epoch: int, step: int, meters):
        """Remember that `step` steps of `epoch` are done: a save goes on from there."""
        self.epoch, self.step, self.meters = epoch, step, meters

    def save_is_due(self, every: int) -> bool:
        """Whether --save-every, 0 for never, asks for a save after this step."""
        return every > 0 and self.step % every == 0

    def save(self, save_checkpoint):
        """Save inside an epoch, through the script's function, on rank 0. Collective.

        A loss or weight that is not finite ends the run instead, and nothing is replaced.
        """
        losses = [meter.val for meter in self.meters if meter.name == "Loss"]
        stop_unless_finite(losses, self.step - 1, self.model, self.optimizer, self.epoch)
        sums = sums_over_ranks(self.meters)
        if ranks.is_rank_zero():
            state = {"epoch": self.epoch, "arch": self.args.arch, **self.present()}
            images = self.step * self.args.batch_size * ranks.world_size()
            save_checkpoint({**state, "step": self.step, "images": images, "sums": sums}, False)

    def save_and_exit(self, save_checkpoint, why="stopped by a signal", status=stop.STATUS):
        """Save, and end this process with `status` once the checkpoint is written. Collective."""
        self.save(save_checkpoint)
        if ranks.has_process_group():
            dist.barrier()
        print_once(f"{why}, and saved: --resume auto goes on from here")
        sys.exit(status)
