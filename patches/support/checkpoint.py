"""Checkpoints: how far a run has come, and all that it takes to go on from there.

A checkpoint is a dictionary of tensors and plain Python, and torch reads it without running code:

    format      1; a file of another format is refused. Upstream's own files have none, and only
                epoch, arch, state_dict and best_acc1: they load too
    epoch       the epoch to go on with
    step        the steps of that epoch that are done
    images      the images of that epoch that are done, over all ranks
    sums        [sum, count] of each training meter in that epoch, over all ranks
    arch        the name of the model in torchvision
    state_dict  the weights, under the model's own keys, whatever it was wrapped in
    best_acc1   the best validation accuracy so far, in percent
    optimizer   the state of the optimizer
    classes     the names of the class folders in train/, in the order of the outputs
    args        the settings of the run; batch_size is that of one rank
    seed        the seed of the job
    run         an id of the run, kept when it is resumed
    world_size  the number of ranks

States of random generators are not in it. What training draws follows from seed, epoch, step and
rank, so any number of ranks can go on.
"""

import os
import signal
import sys
import uuid

import torch.distributed as dist

from . import ranks, saved, seeds
from .folders import class_names
from .meters import stop_unless_finite, sums_over_ranks
from .network import unwrap
from .terminal import exit_with_error, print_once

SETTINGS = (
    "epochs",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
    "seed",
    "num_classes",
    "pretrained",
)


def add_options(parser):
    parser.add_argument(
        "--resume",
        default=None,
        metavar="PATH",
        help="go on from this checkpoint; auto: from the newest whole one in the output folder, "
        "or from the beginning if there is none",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="start from the beginning even if the output folder has a checkpoint, and replace it",
    )


def check(args):
    """End a run that has no weights to evaluate, or would replace a checkpoint of another run."""
    if args.evaluate and not (args.resume or args.pretrained):
        ways = "name a checkpoint with --resume, or ask for --pretrained ones"
        exit_with_error(f"--evaluate: there are no weights; {ways}")
    if args.resume and args.resume != "auto" and not os.path.isfile(args.resume):
        exit_with_error(f"--resume {args.resume}: there is no such file")
    found = saved.here()
    if found and not (args.resume or args.overwrite or args.evaluate):
        exit_with_error(
            f"{os.path.abspath(found[0])} is there already, and would be replaced: go on from it "
            "with --resume auto, write elsewhere with --output-dir, or allow it with --overwrite"
        )


def to_resume(args) -> bool:
    """Whether the run will go on from a checkpoint, so that the first weights do not matter."""
    return bool(args.resume) and (args.resume != "auto" or bool(saved.here()))


def start(model, optimizer, args) -> "Run":
    """The run, new or as the checkpoint of --resume has it, with `model` and `optimizer` loaded.

    Collective. A line says from where the run goes on, and which settings have changed: those of
    the command line count.
    """
    if ranks.is_rank_zero() and not args.evaluate:
        saved.check_room(model)
    path = saved.choose(args) if args.resume else None
    if path is None:
        if args.evaluate and not args.pretrained:
            exit_with_error(f"--evaluate: there are no weights in {os.getcwd()}")
        return Run(model, optimizer, args)
    state = saved.read_for(path, args)
    saved.load_weights(model, state, path)
    if "optimizer" in state:
        saved.load_optimizer(optimizer, state)
    run = Run(model, optimizer, args, state)
    done = f"{run.epoch} epochs and {run.step} steps done, best Acc@1 {run.best_acc1:.3f}"
    print_once("; ".join([f"resumed from {path}: {done}", *saved.changes(state, args)]))
    return run


class Run:
    """How far a run has come, and what a checkpoint of it holds; made by `start`. Collective.

    id         uuid, kept over all resumes
    seed       seed of the job: --seed, else the checkpoint's, else drawn
    epoch      the epoch at hand; before the loop, the first one to train
    step       steps of it that are done
    images     images done in the unfinished epoch that was resumed, over all ranks; else 0
    sums       [sum, count] of the training meters then
    best_acc1  best validation accuracy so far, in percent
    """

    def __init__(self, model, optimizer, args, state=None):
        state = state or {}
        self.model, self.optimizer, self.args = model, optimizer, args
        self.id = state.get("run") or uuid.uuid4().hex
        self.seed = seeds.draw(state.get("seed") if args.seed is None else args.seed)
        self.epoch = self.first_epoch = state.get("epoch", args.start_epoch)
        self.step, self.images = state.get("step", 0), state.get("images", 0)
        self.sums, self.meters = state.get("sums", []), []
        best = float(state.get("best_acc1", 0))
        self.best_acc1 = 0.0 if best > 100 else best  # upstream could save such numbers

    def state(self) -> dict:
        """What a checkpoint after a whole epoch holds, but for `epoch` and `arch`."""
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
        }

    def first_step(self, sampler_length: int, batch_size: int) -> int:
        """The steps of the present epoch that were done before: 0 unless resumed inside it.

        `sampler_length` and `batch_size` are those of one rank.
        """
        if self.epoch != self.first_epoch:
            return 0
        world = ranks.world_size()
        if self.images > world * (sampler_length - 1):  # all of them: the rest is padding
            return -(-sampler_length // batch_size)
        return self.images // world // batch_size

    def begin_epoch(self, epoch: int, loader, meters) -> int:
        """The number of the first step to train; the training `meters` go on from their sums."""
        self.epoch = epoch
        first = self.first_step(len(loader.sampler), loader.batch_size)
        if first and ranks.is_rank_zero():
            for meter, (meter.sum, meter.count) in zip(meters, self.sums):
                meter.avg = meter.sum / max(meter.count, 1)
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
            state = {"epoch": self.epoch, "arch": self.args.arch, **self.state()}
            images = self.step * self.args.batch_size * ranks.world_size()
            save_checkpoint({**state, "step": self.step, "images": images, "sums": sums}, False)

    def save_and_exit(self, save_checkpoint):
        """Save, and end this process with status 75 once the checkpoint is written. Collective."""
        self.save(save_checkpoint)
        if ranks.has_process_group():
            dist.barrier()
        # The launcher sends it once the first rank has ended.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print_once("stopped by a signal, and saved: --resume auto goes on from here")
        sys.exit(75)  # EX_TEMPFAIL: to be run again
