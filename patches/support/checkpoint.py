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
    appended    the size of each file that the script appends to, in bytes, by name

There is more if a patch asks for it with `Run.keep`: `metrics`, the sums of the last line in
metrics.jsonl, `scaler` for --amp fp16, and `ema` for --ema.

States of random generators are not in it. What training draws follows from seed, epoch, step and
rank, so any number of ranks can go on.
"""

import os
from collections.abc import Callable
from typing import Any

import torch.backends.cudnn as cudnn

from . import decode, output_folder, owner, ranks, saved
from .run import Run
from .terminal import exit_with_error, print_once

# A script's own: fit(model, optimizer, state) makes a checkpoint fit the model, and says how.
fit: "Callable[[Any, Any, dict[str, Any]], str] | None" = None


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
        help="start from the beginning even if the output folder has a checkpoint; it is moved "
        "into a folder overwritten-DATE there",
    )
    parser.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="let the checkpoint of --resume hold any Python objects, such as the options of "
        "another script: reading them runs code from the file",
    )


def check(args):
    """End a run that has no weights to evaluate, or would replace a checkpoint of another run."""
    if args.evaluate and not (args.resume or args.pretrained or getattr(args, "init", None)):
        ways = "name a checkpoint with --resume, or ask for --pretrained ones"
        exit_with_error(f"--evaluate: there are no weights; {ways}")
    if args.overwrite and args.resume == "auto":
        exit_with_error(
            "--overwrite --resume auto: the one starts from the beginning, the other goes on from "
            "a checkpoint; give one of them"
        )
    if args.resume and args.resume != "auto" and not os.path.isfile(args.resume):
        exit_with_error(f"--resume {args.resume}: there is no such file")
    refusal = output_folder.refusal(args)
    if refusal:
        exit_with_error(refusal)


def to_resume(args) -> bool:
    """Whether the run will take its weights from a file, so that the first ones do not matter."""
    return bool(getattr(args, "init", None)) or resumes(args)


def resumes(args) -> bool:
    """Whether the run will go on from a checkpoint."""
    return bool(args.resume) and (args.resume != "auto" or bool(output_folder.here()))


def start(model, optimizer, args) -> "Run":
    """The run, new or as the checkpoint of --resume has it, with `model` and `optimizer` loaded.

    Collective. From here on this job owns the output folder, unless it only evaluates. A line says
    from where the run goes on, and which settings have changed: those of the command line count,
    but for the seed, from which an unfinished epoch follows.
    """
    found = output_folder.take(model, args) if ranks.is_rank_zero() else (None, None)
    path, problem = ranks.broadcast(found)
    exit_if_any(problem)
    state, fitted = {}, ""
    if path is not None:
        state, problem = saved.read_for(path, args)
        exit_if_any(problem)
        read = [state.get(name) for name in ("run", "epoch", "step")]
        other = f"--resume {path}: not all hosts find the same checkpoint there; share the folder"
        exit_if_any(None if read == ranks.broadcast(read) else other)
        fitted = fit(model, optimizer, state) if fit else ""
        saved.load_weights(model, state, path)
        take_seed(args, state)
    if "optimizer" in state:
        saved.load_optimizer(optimizer, state)
    if not args.evaluate and ranks.is_rank_zero():
        output_folder.begin(path, state)
    run = Run(model, optimizer, args, state)
    if path is not None:
        said = [f"resumed from {path}: {run.epoch} epochs and {run.step} steps done"]
        said[0] += f", best Acc@1 {run.best_acc1:.3f}"
        said += [fitted] if fitted else []
        print_once("; ".join([*said, *saved.changes(state, args)]))
    if not args.evaluate:
        decode.new_list()
        if ranks.is_rank_zero():
            owner.name_run(run.id)
        exit_if_any(None)  # no rank goes on, and loads an image, before all hosts have a new list
    return run


def exit_if_any(problem):
    """End the job on each host if any rank has a `problem`, a line, and not None. Collective."""
    found = [other for other in ranks.gathered(problem) if other]
    if found:
        exit_with_error(found[0])


def take_seed(args, state):
    """Without --seed the resumed run asks for the kernels that the run before has asked for."""
    if args.seed is None and state.get("args", {}).get("seed") is not None:
        args.seed, cudnn.deterministic = state["seed"], True
