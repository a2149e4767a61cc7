"""Images that are changed at random in training: RandAugment, TrivialAugmentWide, erasing."""

import torch
from torchvision import transforms


def add_options(parser):
    parser.add_argument(
        "--augment",
        default="off",
        choices=["off", "ra", "ta"],
        help="change colours and shape of each training image at random: ra is RandAugment, "
        "ta TrivialAugmentWide (default: off)",
    )
    parser.add_argument(
        "--ra-magnitude",
        default=9,
        type=int,
        metavar="M",
        help="how much --augment ra changes, of 30 (default: 9)",
    )
    parser.add_argument(
        "--random-erase",
        default=0.0,
        type=float,
        metavar="P",
        help="with this probability, erase a part of each training image (default: 0)",
    )


def of_image(args) -> "list[torch.nn.Module]":
    """The transforms of --augment, for an image as it is before ToTensor; none if it is off.

    As torchvision's recipes have them: after the flip, and interpolated as the images are.
    """
    mode = transforms.InterpolationMode(getattr(args, "interpolation", None) or "bilinear")
    if args.augment == "ra":
        return [transforms.RandAugment(magnitude=args.ra_magnitude, interpolation=mode)]
    return [transforms.TrivialAugmentWide(interpolation=mode)] if args.augment == "ta" else []


def of_tensor(args) -> "list[torch.nn.Module]":
    """The transform of --random-erase, for a normalised image, where 0 is the mean colour."""
    return [transforms.RandomErasing(args.random_erase)] if args.random_erase else []
