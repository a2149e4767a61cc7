"""The model for the data, with as many outputs as there are classes, and its wrappers."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torchvision import models

from . import ranks
from .builder import new_model, why_unusable
from .folders import class_names
from .terminal import exit_with_error, print_once


def add_options(parser):
    parser.add_argument(
        "--num-classes",
        default=None,
        type=int,
        metavar="N",
        help="outputs of the model (default: one for each class in train/)",
    )


def check(args):
    """End, before anything has started, if the model cannot be trained, or evaluated, on the data.

    The first process of each host fetches the weights for --pretrained.
    """
    found = len(class_names(os.path.join(args.data, "train")))
    if found == 0:
        exit_with_error(f"--data {args.data}: there are no class folders in its train/")
    if classes(args) < found:
        exit_with_error(f"--num-classes {args.num_classes}: train/ has {found} classes")
    size = getattr(args, "image_size", 224)
    crop, reason = getattr(args, "val_crop", size), None
    more = getattr(args, "builder", {})  # from checks of other modules: what else it is made with
    if not args.evaluate:
        reason = why_unusable(args.arch, classes(args), size=size, **more)
    if not reason and (args.evaluate or crop != size):
        reason = why_unusable(args.arch, classes(args), training=False, size=crop, **more)
    if reason:
        exit_with_error(f"--arch {args.arch}: {reason}")
    if args.pretrained:
        weights = models.get_model_weights(args.arch).__members__
        if "IMAGENET1K_V1" not in weights:
            there = ", ".join(weights) or "none"
            exit_with_error(
                f"--pretrained: torchvision has no IMAGENET1K_V1 weights for {args.arch}, "
                f"only {there}"
            )
        reason = None if args.resume else why_wrong_head(args)
        if reason:
            exit_with_error(reason)
        if ranks.is_first_on_host():
            fetch_weights(weights["IMAGENET1K_V1"])


def why_wrong_head(args) -> "str | None":
    """Why the weights for --pretrained cannot be evaluated on these data, in one line, or None."""
    known = len(models.get_model_weights(args.arch).IMAGENET1K_V1.meta["categories"])
    found, outputs = len(class_names(os.path.join(args.data, "train"))), classes(args)
    if not args.evaluate or found == outputs == known:
        return None
    return (
        f"--evaluate: the weights for --pretrained know {known} classes, train/ has {found} "
        f"and the model {outputs}: train it first, then evaluate it with --resume CHECKPOINT"
    )


def classes(args) -> int:
    """How many outputs the model has: --num-classes, or one for each class in train/."""
    return args.num_classes or len(class_names(os.path.join(args.data, "train")))


def fetch_weights(weights):
    """Download `weights` to where torch.hub keeps them, if not there; one line if that fails."""
    try:
        weights.get_state_dict(check_hash=True)
    except Exception as error:
        # No network, no such file, no space, a file cut short: each library has its own error.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        folder = os.path.join(torch.hub.get_dir(), "checkpoints")
        exit_with_error(
            f"--pretrained: cannot get {weights.url} ({reason}); a copy of it in {folder} is used"
        )


def build(args, pretrained: bool = False) -> nn.Module:
    """The model `args.arch` with an output for each class, on the CPU.

    Its weights are random, or those that torchvision's `pretrained=True` has always meant. The
    first process of each host has fetched these. For training it alone reads them, for
    DistributedDataParallel gives all others what rank 0 has; but a few models that can only be
    evaluated are other models with weights. A head for other classes than theirs is new.
    """
    outputs, more = classes(args), getattr(args, "builder", {})
    if not pretrained or not (ranks.is_first_on_host() or args.evaluate):
        return new_model(args.arch, outputs, **more)
    weights = models.get_model_weights(args.arch).IMAGENET1K_V1
    whole: nn.Module = models.get_model(args.arch, weights=weights)
    if outputs == len(weights.meta["categories"]) and not more:
        return whole
    model = new_model(args.arch, outputs, **more)
    state = whole.state_dict()
    if isinstance(model, models.VisionTransformer) and model.image_size != whole.image_size:
        resize = models.vision_transformer.interpolate_embeddings
        state = resize(model.image_size, model.patch_size, state)
        sizes = f"{whole.image_size} to {model.image_size}"
        print_once(f"{args.arch}: its position embedding is interpolated from {sizes} pixels")
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    # Without heads that serve training alone, it has no place for their weights.
    fitting = {name: value for name, value in state.items() if value.shape == shapes.get(name)}
    model.load_state_dict(fitting, strict=False)
    new = ", ".join(name for name in shapes if name not in fitting)
    if new:
        print_once(f"{args.arch}: {new} start at random, for {outputs} classes")
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """The model without the wrappers for several devices and for compilation.

    A checkpoint has the keys of the model itself. A wrapper has nothing else in it: a model may
    have a layer called `module`, too.
    """
    while [name for name, _ in model.named_children()] in (["module"], ["_orig_mod"]):
        (model,) = model.children()
    return model


def for_validation(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, as a checkpoint would hold it. Collective under DDP.

    In training each rank gathers running statistics of its own, and a checkpoint has those of
    rank 0. DistributedDataParallel would send them to all in the next forward pass, and wait for a
    rank that has no batch. So they are sent here, and the model is used without the wrapper.
    """
    model.eval()
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return model
    own: nn.Module = model.module
    send_buffers(own)
    return own


def send_buffers(model: nn.Module):
    """Give all ranks the buffers that rank 0 has. Collective."""
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    # Loading processes are forked next. A thread of gloo that lets go of its last tensor just then
    # would leave a lock of Python 3.11 taken in them, and they would never begin.
    time.sleep(0.1)
