"""Checkpoint files: read one, and load what it holds.

What a checkpoint holds is said in `checkpoint`.
"""

import os
import re
import zipfile
from typing import Any

import torch

from . import ranks
from .folders import class_names
from .network import unwrap
from .terminal import exit_with_error

FORMAT = 1
# The settings of a recipe, of scripts that have them.
RECIPE: "tuple[str, ...]" = ("recipe", "opt", "betas", "decay", "schedule", "warmup")
RECIPE += ("warmup_steps", "warmup_start", "min_lr", "clip_grad", "label_smoothing", "mixup")
RECIPE += ("cutmix", "repeats", "ema", "augment", "ra_magnitude", "random_erase", "image_size")
RECIPE += ("val_resize", "val_crop", "interpolation", "dropout", "stochastic_depth")
FOREIGN = ("epoch", "arch", "state_dict", "best_acc1", "optimizer")  # of other scripts' checkpoints


def read(path: str, trusted: bool = False) -> "dict[str, Any]":
    """What a checkpoint holds. ValueError says why the file is none; another format ends the run.

    Code in the file runs only if it is `trusted`.
    """
    try:
        state = load(path, trusted)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    state = state if isinstance(state, dict) else {}
    if "format" not in state:  # keys with other names mean what they mean in another script
        state = {name: state[name] for name in FOREIGN if name in state}
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


def load(path: str, trusted: bool) -> Any:
    """What torch.save has put into a file, on the CPU; ValueError says why it cannot be read.

    Tensors are mapped, not read before they are used. Code in the file runs only if it is
    `trusted`: it may hold other types than tensors and plain Python then.
    """
    try:
        mapped = zipfile.is_zipfile(path)  # torch before 1.6 wrote another kind
        if mapped:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip():  # torch compares no checksums
                    raise ValueError("a checksum does not fit")
        plain = not trusted
        return torch.load(path, map_location="cpu", weights_only=plain, mmap=mapped or None)
    except Exception as error:  # an unpickler may raise anything on a file that is no checkpoint
        raise ValueError(f"cannot be read: {why_unread(error)}") from None


def why_unread(error) -> str:
    """The reason in one line: torch's own messages have many, with colours."""
    text = str(error).partition("WeightsUnpickler error:")[2].strip() or str(error)
    held = re.search(r"nsupported (?:global: )?(?:GLOBAL (\S+)|(operand \d+))", str(error))
    if held:
        return (
            f"it holds {held[1] or held[2]}, which may run code from the file; "
            "if you trust whoever made it, add --trust-checkpoint"
        )
    return text.partition("\n")[0] or type(error).__name__


def read_for(path, args):
    """(state, problem): what a checkpoint holds, and why the run cannot go on from it, or None."""
    try:
        state = read(path, args.trust_checkpoint)
    except ValueError as error:
        return {}, f"--resume {error}"
    if state["arch"] != args.arch:
        return state, f"--resume {path}: it is of {state['arch']}, --arch says {args.arch}"
    here = class_names(os.path.join(args.data, "train"))
    there = state.get("classes", here)
    if there != here:
        others = some(sorted(set(there) ^ set(here)))
        counts = f"it has {len(there)} classes, train/ has {len(here)}"
        return state, f"--resume {path}: {counts}; not in both: {others}"
    return state, None


def load_weights(model: torch.nn.Module, state, path: str):
    """Load the weights of a checkpoint, whatever wrappers the saved model had."""
    own = unwrap(model).state_dict()
    weights = strip_wrappers(state["state_dict"], own)
    wrong = misfits(weights, own)
    if wrong:
        exit_with_error(f"{path}: not the weights of this model: {some(wrong)}")
    unwrap(model).load_state_dict(weights)


def misfits(weights: "dict[str, Any]", own: "dict[str, Any]", spare=()) -> "list[str]":
    """What keeps `weights` from being a model's, which has its `own`; `spare` may be missing."""
    wrong = [f"missing {name}" for name in own if name not in weights and name not in spare]
    wrong += [f"unexpected {name}" for name in weights if name not in own]
    wrong += [
        f"{name} is {list(weights[name].shape)}, not {list(value.shape)}"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    return wrong


def strip_wrappers(weights: "dict[str, Any]", own: "dict[str, Any]") -> "dict[str, Any]":
    """Weights under the names that the model's `own` have, if wrappers have only prefixed them.

    All names have the prefix of a wrapper. A layer of the model may have such a name, too.
    """
    for wrapper in ("module.", "_orig_mod."):
        prefixed = weights and all(name.startswith(wrapper) for name in weights)
        if prefixed and weights.keys() != own.keys():
            short = {name[len(wrapper) :]: value for name, value in weights.items()}
            return strip_wrappers(short, own)
    return weights


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


def changes(state, args) -> "list[str]":
    """What is not in a checkpoint, or is other than on the command line: a phrase for each."""
    found = []
    if "optimizer" not in state:
        found.append("there is no optimizer in it: its momentum starts at zero")
    if state["best_acc1"] > 100:
        found.append(f"its best Acc@1 {float(state['best_acc1']):.3f} is ignored: above 100 %")
    world, settings = ranks.world_size(), state.get("args", {})
    old = dict(settings, world_size=state.get("world_size", world))
    new = dict(vars(args), world_size=world)
    for values in (old, new):
        values["global_batch"] = values.get("batch_size", 0) * values["world_size"]
        if "betas" in values:
            values["betas"] = [*values["betas"]]  # a tuple unless the command line has them
        if values.get("warmup_steps"):
            values.pop("warmup", None)  # it follows from them, once there is a loader
    told = ("world_size", "global_batch", "lr", "momentum", "weight_decay", *RECIPE)
    both = [name for name in told if name in old and name in new and settings]
    other = [name for name in both if old[name] != new[name]]
    found += [f"{name} was {old[name]}, is {new[name]}" for name in other]
    if args.seed is not None and state.get("seed", args.seed) != args.seed:
        found.append(f"seed stays {state['seed']}, not {args.seed}")
    if state["epoch"] >= args.epochs and not args.evaluate:
        found.append(f"nothing is left to do, with --epochs {args.epochs}")
    again = state["images"] % new["global_batch"] if state.get("images") else 0
    if again and old["global_batch"] != new["global_batch"]:
        found.append(f"the last {again} images of its unfinished epoch are trained again")
    return found


def some(names) -> str:
    """The first few of a list, for a message."""
    return ", ".join(names[:6] + ["..."] * (len(names) > 6))
