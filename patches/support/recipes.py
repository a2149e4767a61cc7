"""Recipes: the settings of a published training under one name; each is still an option.

`vit` is that of torchvision's vit_b_16 weights IMAGENET1K_V1, Acc@1 81.072: 8 GPUs of 512 images.
https://github.com/pytorch/vision/tree/main/references/classification#vit_b_16
Its --model-ema-decay 0.99998 is an average over epochs / 0.00002 images: 11.7 epochs of ImageNet
if there are 300, and 23.4 if there are 600, as in `resnet`. It decays all weights; this does not.

`vit-paper` is that of ViT-B/16 and ViT-L/16 on ImageNet-1k from scratch: Dosovitskiy et al. 2021,
"An image is worth 16x16 words", table 3 and appendix B.1, 4096 images a step.
https://arxiv.org/abs/2010.11929

`resnet` is that of torchvision's resnet50 weights IMAGENET1K_V2, Acc@1 80.858: 8 GPUs of 128.
https://github.com/pytorch/vision/issues/3995#issuecomment-1013906621
https://pytorch.org/blog/how-to-train-state-of-the-art-models-using-torchvision-latest-primitives/

docs/recipes.md says term by term what is equal to torchvision's script, and what is not.
"""

import argparse
import json
from typing import Any, NamedTuple

from . import files, ranks
from .output_folder import ARGUMENTS
from .terminal import exit_with_error, print_once


class Recipe(NamedTuple):
    """The images a step, over all ranks, that its `lr` is for; and the value of each option."""

    batch: int
    values: "dict[str, Any]"


RECIPES = {
    "vit": Recipe(
        4096,
        {
            "epochs": 300,
            "opt": "adamw",
            "lr": 0.003,
            "weight_decay": 0.3,
            "decay": "weights",
            "schedule": "cosine",
            "warmup": 30.0,
            "warmup_start": 0.033,
            "clip_grad": 1.0,
            "label_smoothing": 0.11,
            "mixup": 0.2,
            "cutmix": 1.0,
            "augment": "ra",
            "repeats": 3,
            "ema": 11.7,
        },
    ),
    "vit-paper": Recipe(
        4096,
        {
            "epochs": 300,
            "opt": "adamw",
            "betas": (0.9, 0.999),
            "lr": 0.003,
            "weight_decay": 0.3,
            "decay": "weights",
            "schedule": "cosine",
            "warmup_steps": 10000,
            "warmup_start": 0.0,
            "clip_grad": 1.0,
            "dropout": 0.1,
        },
    ),
    "resnet": Recipe(
        1024,
        {
            "epochs": 600,
            "opt": "sgd",
            "lr": 0.5,
            "momentum": 0.9,
            "weight_decay": 0.00002,
            "decay": "weights",
            "schedule": "cosine",
            "warmup": 5.0,
            "warmup_start": 0.01,
            "label_smoothing": 0.1,
            "mixup": 0.2,
            "cutmix": 1.0,
            "augment": "ta",
            "random_erase": 0.1,
            "image_size": 176,
            "val_resize": 232,
            "val_crop": 224,
            "repeats": 4,
            "ema": 23.4,
        },
    ),
}
# Two ways to say one thing: if the command line has the one, the recipe does not set the other.
INSTEAD = {"warmup": "warmup_steps", "warmup_steps": "warmup"}


def add_options(parser):
    parser.add_argument(
        "--recipe",
        default=None,
        choices=RECIPES,
        help="take the settings of a published training, but for those that are given here; its "
        "learning rate is scaled to the images a step (default: none)",
    )


def apply(parser: argparse.ArgumentParser, args):
    """Give `args` the values of --recipe that the command line does not have, and say so in a line.

    The learning rate is for the recipe's images a step, and is scaled linearly to those of all
    ranks (Goyal et al. 2017, https://arxiv.org/abs/1706.02677). Call it once it is known how many
    ranks there are, and before the numbers are checked.
    """
    if args.recipe is None:
        return
    batch, published = RECIPES[args.recipe]
    unknown = [f"--{name.replace('_', '-')}" for name in published if name not in args]
    if unknown:
        exit_with_error(f"--recipe {args.recipe}: this script has no {', '.join(unknown)}")
    images = args.batch_size * ranks.world_size() // max(1, ranks.local_world_size())
    values = {**published, "lr": published["lr"] * (images / batch)}
    scaled = f" ({published['lr']:g} for {batch} images a step, here {images})"
    given, taken, other = options_given(parser, args), [], []
    for name, value in values.items():
        said = shown(name, value)
        rival = name if name in given else INSTEAD.get(name, "")
        if rival in given:
            other.append(f"{shown(rival, given[rival])} instead of {said}")
            continue
        setattr(args, name, value)
        taken.append(said + (scaled if name == "lr" else ""))
    line = f"recipe {args.recipe}: {' '.join(taken)}"
    print_once(line + (f"; by the command line: {', '.join(other)}" if other else ""))


def shown(name: str, value) -> str:
    """A setting, for the line."""
    values = value if isinstance(value, (list, tuple)) else [value]
    said = [f"{one:g}" if isinstance(one, (int, float)) else str(one) for one in values]
    return f"{name}={','.join(said)}"


def options_given(parser: argparse.ArgumentParser, args) -> "dict[str, Any]":
    """What the command line has said: the values that are there if no option has a default."""
    nothing = object()
    blank = argparse.Namespace(**dict.fromkeys(vars(args), nothing))
    found = vars(parser.parse_args(namespace=blank))
    return {name: value for name, value in found.items() if value is not nothing}


def save(args):
    """Write all arguments, as they are in force, to args.json in the output folder, on rank 0.

    `batch_size` is that of the node there, as on the command line; `args` has that of one process.
    A job that only evaluates writes nothing.
    """
    if args.evaluate or not ranks.is_rank_zero():
        return
    found = {name: value for name, value in vars(args).items() if name != "builder"}  # no option
    found["batch_size"] *= ranks.local_world_size()
    text = json.dumps(found, indent=4, sort_keys=True, default=str)
    with files.atomic_write(ARGUMENTS) as temporary, open(temporary, "w") as file:
        file.write(text + "\n")
