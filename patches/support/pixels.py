"""Images as bytes: workers decode and crop them as uint8, the device normalises them."""

import functools
import itertools
from typing import Any

import torch
from torchvision import transforms
from torchvision.transforms import functional

from . import decode, jpeg
from .terminal import exit_with_error, print_once

# Upstream's two pipelines.
ENDING = (transforms.ToTensor, transforms.Normalize)
TRAINING = (transforms.RandomResizedCrop, transforms.RandomHorizontalFlip, *ENDING)
VALIDATION = (transforms.Resize, transforms.CenterCrop, *ENDING)
# What training may have besides, below its flip.
AUGMENTING = (transforms.RandAugment, transforms.TrivialAugmentWide)
# Mean and spread of red, green and blue, of 1; `faster` reads them from the pipelines.
_colours: "tuple[tuple[float, ...], tuple[float, ...]]" = ((), ())


def add_options(parser):
    parser.add_argument(
        "--exact-transforms",
        action="store_true",
        help="decode with Pillow and transform in float32, bit for bit as upstream does; slower",
    )


def faster(train_loader, val_loader, args):
    """Let both loaders give batches of uint8, (N, height, width, 3), for `normalized`.

    Decoding and cropping become one step of the data sets, which their transforms describe: with
    the crop known, less has to be decoded. A transform that is not known ends the run in one line.
    With --exact-transforms nothing changes.
    """
    global _colours
    if args.exact_transforms:
        return
    sets = [getattr(one.dataset, "images", one.dataset) for one in (train_loader, val_loader)]
    pipelines = [Pipeline(getattr(images, "transform", None)) for images in sets]
    if pipelines[0].colours != pipelines[1].colours:
        refuse("validation has other numbers than training in its Normalize")
    _colours = pipelines[0].colours
    for images, pipeline in zip(sets, pipelines):
        loader: Any = getattr(images, "loader", None)
        if getattr(loader, "func", loader) is not decode.load_image:
            refuse(f"a data set has a loader of its own, {loader}")
        images.loader = functools.partial(loader, read=pipeline)
        images.transform = images.transforms = None
    slower = "torchvision; simplejpeg is faster: pip install simplejpeg"
    print_once(f"images are decoded by {'simplejpeg' if jpeg.simplejpeg else slower}")


def refuse(why: str):
    exit_with_error(f"{why}; with --exact-transforms all is done as upstream does it")


def normalized(inputs: torch.Tensor) -> torch.Tensor:
    """What ToTensor and Normalize make of a batch of uint8; any other batch as it is.

    From (N, height, width, 3) to float32 of shape (N, 3, height, width), channels last in memory.
    """
    if inputs.dtype != torch.uint8:
        return inputs
    shift, scale = factors(inputs.device, inputs.size(2), _colours)
    # Over whole rows, and in place: the CPU is twice as fast as over three numbers at a time.
    rows = inputs.flatten(2).float().mul_(scale).add_(shift)
    return rows.view(inputs.shape).permute(0, 3, 1, 2)


@functools.cache
def factors(device, width: int, colours) -> "tuple[torch.Tensor, torch.Tensor]":
    """Two rows of an image, such that (x / 255 - mean) / std is the first + x * the second."""
    mean, std = (torch.tensor(numbers, dtype=torch.float64).repeat(width) for numbers in colours)
    return (-mean / std).float().to(device), (1 / (255 * std)).float().to(device)


class Pipeline:
    """Reads a file as a transform of upstream's would see it, but for its last two steps.

    colours    mean and spread that it normalises with
    """

    def __init__(self, transform):
        steps = list(getattr(transform, "transforms", [transform]))
        self.trains = any(type(step) is TRAINING[0] for step in steps[:1])
        known = TRAINING if self.trains else VALIDATION
        takes = self.trains and len(steps) > len(known)
        self.erase = steps.pop() if takes and type(steps[-1]) is transforms.RandomErasing else None
        takes = self.trains and len(steps) > len(known)
        self.augment = steps.pop(2) if takes and type(steps[2]) in AUGMENTING else None
        kinds = map(type, steps)
        for wanted, found in itertools.zip_longest(known, kinds):
            if found is not wanted:
                names = [kind.__name__ if kind else "no more" for kind in (wanted, found)]
                refuse(f"transforms of the images: expected {names[0]}, found {names[1]}")
        self.resize, self.second, _, last = steps
        if self.resize.interpolation not in jpeg.FILTERS or getattr(self.resize, "max_size", None):
            refuse(f"transforms of the images: {self.resize} is not known")
        self.colours = tuple(last.mean), tuple(last.std)
        if self.erase:
            self.erase = in_bytes(self.erase, last.mean)

    def __call__(self, path: str) -> torch.Tensor:
        """uint8 of shape (height, width, 3); what Pillow raises if the file cannot be decoded.

        It draws what upstream draws, and like it nothing for a file that cannot be decoded.
        """
        state = torch.get_rng_state()
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
            head = jpeg.header(data)
            if head:
                reader = functools.partial(jpeg.resized, data, head)
                return self.transformed(head.height, head.width, reader)
        except Exception:  # Pillow decides what it is
            torch.set_rng_state(state)
        pixels = functional.pil_to_tensor(decode.read(path)).permute(1, 2, 0)
        height, width, _ = pixels.shape
        return self.transformed(height, width, functools.partial(jpeg.interpolated, pixels))

    def transformed(self, height: int, width: int, reader) -> torch.Tensor:
        """The crop of an image of this size, as `reader(box, size, mode, spare)` resizes it."""
        resize, second = self.resize, self.second
        if self.trains:
            whole = torch.empty(1).expand(3, height, width)  # has a size, and takes no memory
            box = resize.get_params(whole, resize.scale, resize.ratio)
            pixels = reader(box, resize.size, resize.interpolation, 1)
            pixels = pixels.flip(-1) if torch.rand(1) < second.p else pixels
            if self.augment:  # by Pillow in 1.5 ms, by torch in 2.1
                image = self.augment(functional.to_pil_image(pixels[0]))
                pixels = functional.pil_to_tensor(image)[None]
            pixels = self.erase(pixels) if self.erase else pixels
        else:
            size = size_after(resize.size, height, width)
            # At less than twice the size, decoding at a scale would show.
            pixels = reader((0, 0, height, width), size, resize.interpolation, 2)
            pixels = functional.center_crop(pixels, second.size)
        sample: torch.Tensor = pixels[0].permute(1, 2, 0).contiguous()
        return sample


def in_bytes(erase: transforms.RandomErasing, mean) -> transforms.RandomErasing:
    """`erase` for uint8, with the same draws: it fills with the mean colour, as 0 is later.

    Rounded: afterwards, with ImageNet's numbers, it is 0.01 from 0 at most.
    """
    if erase.value != 0:
        refuse(f"transforms of the images: {erase} is not known, but for value=0")
    colour = [round(255 * one) for one in mean]
    return transforms.RandomErasing(erase.p, erase.scale, erase.ratio, colour)


def size_after(resize, height: int, width: int) -> "tuple[int, int]":
    """The height and width that transforms.Resize(resize) gives: one number is the shorter side."""
    first, *others = [resize] if isinstance(resize, int) else resize
    if others:
        return first, others[0]
    if width <= height:
        return int(first * height / width), first
    return first, int(first * width / height)
