"""Checkpoint files: find the one to go on from, read it, and load what it holds.

What a checkpoint holds is said in `checkpoint`.
"""

import os
import re
import shutil
import sys
import zipfile

import torch

from . import files, ranks
from .folders import class_names
from .network import unwrap
from .terminal import exit_with_error, program

FORMAT = 1
LAST, PREVIOUS, BEST = "checkpoint.pth.tar", "checkpoint_previous.pth.tar", "model_best.pth.tar"


def here() -> list:
    """The checkpoint files in the output folder, whole or not."""
    return [name for name in (LAST, PREVIOUS, BEST) if os.path.lexists(name)]


def check_room(model):
    """End the run if the disk cannot hold its checkpoints: last, previous, best, one in writing."""
    own = unwrap(model)
    tensors = [*own.state_dict().values(), *own.parameters()]  # momentum: one for each parameter
    needed = 4 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    stats = [os.stat(name) for name in here() if os.path.exists(name)]
    room = shutil.disk_usage(".").free + sum({stat.st_ino: stat.st_size for stat in stats}.values())
    if room < needed:
        exit_with_error(
            f"{os.getcwd()}: {room / 2**20:.1f} MB free, and checkpoints take up to "
            f"{needed / 2**20:.1f} MB; choose another --output-dir"
        )


def read(path) -> dict:
    """What a checkpoint holds. ValueError says why the file is none; another format ends the run.

    Tensors are mapped, not read before they are used.
    """
    try:
        mapped = zipfile.is_zipfile(path)  # torch before 1.6 wrote another kind
        if mapped:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip():  # torch compares no checksums
                    raise ValueError("a checksum does not fit")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped or None)
    except Exception as error:  # an unpickler may raise anything on a file that is no checkpoint
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: cannot be read: {reason}") from None
    state = state if isinstance(state, dict) else {}
    if state.get("format", FORMAT) != FORMAT:
        # Not one to pass over, like a broken one: --resume auto would replace it.
        exit_with_error(
            f"--resume {path}: its format is {state['format']}, this script reads {FORMAT}"
        )
    missing = {"epoch", "arch", "state_dict", "best_acc1"} - set(state)
    if missing:
        names = ", ".join(sorted(missing))
        raise ValueError(f"{path}: not a checkpoint of this script, it has no {names}")
    return state


def newest():
    """(path, lines): the whole checkpoint here that has come furthest, or None; what is broken.

    Only the run of the first whole one counts: another run's files may have come further.
    """
    found, broken = [], []
    for path in here():
        try:
            state = read(path)
        except ValueError as error:
            broken.append(str(error))
            continue
        if not found or state.get("run") == found[0][1]:
            found.append(((state["epoch"], state.get("step", 0)), state.get("run"), path))
    return max(found, key=lambda one: one[0])[2] if found else None, broken


def choose(args):
    """The path to resume from, or None: rank 0 chooses for all, so that all begin alike."""
    path = args.resume if args.resume != "auto" else None
    if args.resume == "auto" and ranks.is_rank_zero():
        path, broken = newest()
        for line in broken:
            print(f"{program()}: {line}", file=sys.stderr, flush=True)
        if broken and not path:
            exit_with_error(f"--resume auto: no checkpoint in {os.getcwd()} is whole")
        if path not in (None, LAST) and not args.evaluate:
            files.link(path, LAST)  # or the next save would make a broken one the previous one
        if not path:
            where = f"no checkpoint in {os.getcwd()}"
            print(f"--resume auto: {where}, starting from the beginning", flush=True)
    return ranks.broadcast(path)


def read_for(path, args) -> dict:
    """What the checkpoint to resume from holds; the run ends if it is of another model or data."""
    try:
        state = read(path)
    except ValueError as error:
        exit_with_error(f"--resume {error}")
    if state["arch"] != args.arch:
        exit_with_error(f"--resume {path}: it is of {state['arch']}, --arch says {args.arch}")
    here = class_names(os.path.join(args.data, "train"))
    there = state.get("classes", here)
    if there != here:
        others = some(sorted(set(there) ^ set(here)))
        counts = f"it has {len(there)} classes, train/ has {len(here)}"
        exit_with_error(f"--resume {path}: {counts}; not in both: {others}")
    return state


def load_weights(model, state, path):
    """Load the weights of a checkpoint, whatever wrappers the saved model had."""
    wrappers = re.compile(r"^(module\.|_orig_mod\.)+")
    weights = {wrappers.sub("", name): value for name, value in state["state_dict"].items()}
    own = unwrap(model).state_dict()
    wrong = [f"missing {name}" for name in own if name not in weights]
    wrong += [f"unexpected {name}" for name in weights if name not in own]
    wrong += [
        f"{name} is {list(weights[name].shape)}, not {list(value.shape)}"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if wrong:
        exit_with_error(f"{path}: not the weights of this model: {some(wrong)}")
    unwrap(model).load_state_dict(weights)


def load_optimizer(optimizer, state):
    """Load the momentum of a checkpoint; learning rate and the like stay those of `optimizer`."""
    own = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state["optimizer"])
    for kept in optimizer.state.values():
        # A mapped file keeps its room on the disk after it has been replaced, so copy.
        tensors = {name: value for name, value in kept.items() if isinstance(value, torch.Tensor)}
        kept.update({name: value.clone() for name, value in tensors.items()})
    for group, settings in zip(optimizer.param_groups, own):
        group.update(settings)


def changes(state, args) -> list:
    """What is not in a checkpoint, or is other than on the command line: a phrase for each."""
    found = []
    if "optimizer" not in state:
        found.append("there is no optimizer in it: its momentum starts at zero")
    if state["best_acc1"] > 100:
        found.append(f"ignored: its best Acc@1, {float(state['best_acc1']):.3f}, is above 100 %")
    world, settings = ranks.world_size(), state.get("args", {})
    old = dict(settings, world_size=state.get("world_size", world))
    new = dict(vars(args), world_size=world)
    for values in (old, new):
        values["global_batch"] = values.get("batch_size", 0) * values["world_size"]
    for name in ("world_size", "global_batch", "lr", "momentum", "weight_decay", "seed"):
        if name in old and settings and old[name] != new[name]:
            found.append(f"{name} was {old[name]}, is {new[name]}")
    again = state["images"] % new["global_batch"] if state.get("images") else 0
    if again and old["global_batch"] != new["global_batch"]:
        found.append(f"the last {again} images of its unfinished epoch are trained again")
    return found


def some(names) -> str:
    """The first few of a list, for a message."""
    return ", ".join(names[:6] + ["..."] * (len(names) > 6))
