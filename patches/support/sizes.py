"""How large images are, and how they are resized: as upstream, but for models of another size."""

import math

from torchvision import models, transforms

from .builder import takes
from .terminal import exit_with_error, print_once

UPSTREAM = (224, 256, 224, "bilinear")  # for training, resized and cut for validation


def add_options(parser):
    parser.add_argument(
        "--image-size",
        default=None,
        type=int,
        metavar="N",
        help="train with images of N x N pixels (default: 224, or the size that the model is for)",
    )
    parser.add_argument(
        "--val-resize",
        default=None,
        type=int,
        metavar="N",
        help="in validation, resize the shorter side to N pixels (default: 256/224 of what is "
        "cut, or what the model is for)",
    )
    parser.add_argument(
        "--val-crop",
        default=None,
        type=int,
        metavar="N",
        help="then cut N x N pixels from the middle (default: --image-size)",
    )
    parser.add_argument(
        "--interpolation",
        default=None,
        choices=["bilinear", "bicubic"],
        help="how pixels are resized (default: bilinear, or what the model is for)",
    )


def check(args):
    """Settle the four options for the model `args.arch`, and say so if they are not upstream's.

    From here on `args` has numbers. A model that is made for one size, such as a vision
    transformer, gets that of training by its builder.
    """
    size, resize, crop, mode = of_weights(args.arch)
    if args.image_size or args.val_crop:
        crop = args.val_crop or args.image_size
        resize = of_crop(crop)
    args.image_size = args.image_size or size
    args.val_crop, args.val_resize = crop, args.val_resize or resize
    args.interpolation = args.interpolation or mode
    if args.val_resize < args.val_crop:
        exit_with_error(
            f"--val-resize {args.val_resize}: images would get black edges, for {args.val_crop} "
            f"pixels are cut from them (--val-crop)"
        )
    args.builder = {**getattr(args, "builder", {}), **of_builder(args.arch, args.image_size)}
    found = (args.image_size, args.val_resize, args.val_crop, args.interpolation)
    if found != UPSTREAM:
        print_once(
            f"images: {args.image_size} x {args.image_size} pixels in training, in validation "
            f"{args.val_resize} and from these {args.val_crop} x {args.val_crop}, {found[-1]}"
        )


def of_weights(arch: str) -> "tuple[int, int, int, str]":
    """(training, resize, crop, interpolation) of upstream, or of torchvision's weights for `arch`.

    The IMAGENET1K_V1 weights say how they are evaluated. If that is with images of another size
    than 224, it counts, and training takes the size of that crop, such as 299 for inception_v3.
    """
    try:
        weights = models.get_model_weights(arch).__members__
    except (ValueError, AttributeError):  # someone has registered a model that has none
        return UPSTREAM
    if "IMAGENET1K_V1" not in weights:
        return UPSTREAM
    preset = weights["IMAGENET1K_V1"].transforms()
    (crop,), (resize,) = preset.crop_size, preset.resize_size
    if crop == UPSTREAM[0]:
        return UPSTREAM
    return crop, resize, crop, preset.interpolation.value


def of_crop(crop: int) -> int:
    """The size of the shorter side, of which `crop` is the same part as 224 of upstream's 256."""
    return math.floor(crop * 256 / 224 + 0.5)


def of_builder(arch: str, size: int) -> "dict[str, object]":
    """The keyword that makes torchvision's builder of `arch` build for `size`; none if it has none.

    Most models take images of any size.
    """
    keywords: list[dict[str, object]] = [{"image_size": size}, {"input_size": (size, size)}]
    return next((one for one in keywords if takes(arch, **one)), {})


def mode(args) -> transforms.InterpolationMode:
    """The interpolation as torchvision's transforms take it."""
    return transforms.InterpolationMode(args.interpolation)
