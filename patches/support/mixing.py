"""--mixup and --cutmix: training images that are made of two, with labels in the same shares."""

import functools
from types import SimpleNamespace

import torch
from torchvision.transforms import v2

from . import ranks
from .network import classes


def add_options(parser):
    parser.add_argument(
        "--mixup",
        default=0.0,
        type=float,
        metavar="ALPHA",
        help="blend pairs of training images, in shares drawn from Beta(ALPHA, ALPHA) "
        "(default: 0, off)",
    )
    parser.add_argument(
        "--cutmix",
        default=0.0,
        type=float,
        metavar="ALPHA",
        help="put a part of one training image into another, its area drawn from Beta(ALPHA, "
        "ALPHA); with --mixup each batch has one of the two (default: 0, off)",
    )


def mixed(
    inputs: torch.Tensor, labels: torch.Tensor, args
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """(inputs, targets, labels) of a batch: what the model and the loss get, and what is counted.

    `inputs` is float of shape (N, channels, height, width), and stays so; `labels` has N classes,
    and `targets` is (N, classes): the share of each class in an image, 1 in all. `labels` then is
    the class with the largest share, by which torchvision's reference counts accuracy, too.
    Without --mixup and --cutmix all stay what they are, and targets are labels.

    All is computed on the device of the batch. torchvision draws on the CPU, from the generator
    that `seeds.seed_step` has seeded: so a resumed run mixes what the whole one would have mixed.
    An image is mixed with the one before it. If a rank may have copies of an image next to each
    other (--repeats), its batch is shuffled first.
    """
    if not args.mixup and not args.cutmix:
        return inputs, labels, labels
    if getattr(args, "repeats", 1) > ranks.world_size():
        order = torch.randperm(len(labels), device=labels.device)
        inputs, labels = inputs[order], labels[order]
    outputs = _classes(args.data, args.num_classes)
    inputs, targets = mixer(args.mixup, args.cutmix, outputs)(inputs, labels)
    return inputs, targets, targets.argmax(1)


@functools.cache
def mixer(mixup: float, cutmix: float, outputs: int) -> v2.Transform:
    """torchvision's transform of a batch (images, labels) for these alphas, 0 for neither."""
    kinds: list[v2.Transform] = []
    if mixup:
        kinds.append(v2.MixUp(alpha=mixup, num_classes=outputs))
    if cutmix:
        kinds.append(v2.CutMix(alpha=cutmix, num_classes=outputs))
    return v2.RandomChoice(kinds)


@functools.cache
def _classes(data: str, given: "int | None") -> int:
    """`network.classes`, which lists a folder, asked once."""
    return classes(SimpleNamespace(data=data, num_classes=given))
