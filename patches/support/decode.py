"""Images that cannot be decoded: named, and up to a number skipped, listed and counted."""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from PIL import Image
from torchvision import datasets

from . import ranks
from .terminal import program

LIST = "skipped_images.txt"


def add_options(parser):
    parser.add_argument(
        "--skip-bad-images",
        default=0,
        type=int,
        metavar="N",
        help="go on if up to N training images cannot be decoded; the next one of their folder "
        "takes their place. skipped_images.txt in the output folder lists and counts them, so "
        "hosts that do not share that folder may each skip N (default: 0, the first ends the run)",
    )


def new_list():
    """Start a new list of skipped images, on each host: it may be a list of its own.

    The first process of a host does so before any of its ranks loads an image.
    """
    if ranks.is_first_on_host():
        with contextlib.suppress(FileNotFoundError):  # also if another host has just removed it
            os.remove(LIST)


def read(path: str) -> Image.Image:
    """The image in a file as torchvision reads it, and grey ones of 16 bits scaled to 8.

    Pillow clips numbers over 255 instead: such images would be white all over, and fractions black.
    ValueError if the file does not say which number is white.
    """
    with open(path, "rb") as file:
        image = Image.open(file)
        if image.mode not in ("I", "F") and not image.mode.startswith("I;"):
            return image.convert("RGB")
        # Pillow leaves TIFF as it is: 12 bits, and images whose 0 is white.
        tags = getattr(image, "tag_v2", {})
        plain = image.mode.startswith("I;16") and (tags.get(258), tags.get(262)) == ((16,), 1)
        if image.mode == "F" or not (plain or image.format in ("PNG", "PPM")):
            kind = f"{image.format} of mode {image.mode}"
            raise ValueError(f"{kind}: it is not clear which number is white; convert it to 8 bits")
        # The high byte, as Pillow does in colour.
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("RGB")


def skipping(skip: int):
    """A loader for ImageFolder that goes on if up to `skip` images of the job are bad."""
    return functools.partial(load_image, skip=skip)


def load_image(path: str, skip: int = 0, read: "Callable[[str], Any]" = read):
    """What `read` makes of an image file; RuntimeError with the file's name if that fails.

    The job may have up to `skip` such files. For each of them comes the next image of the folder,
    which has the same label, so batches keep their size on every rank.
    """
    folder, name = os.path.split(path)
    names = [name]
    while names:
        try:
            return read(os.path.join(folder, names[0]))
        except Exception as error:
            note_bad_image(os.path.join(folder, names[0]), error, skip)
        if names == [name]:
            images = sorted(filter(datasets.folder.is_image_file, os.listdir(folder)))
            after = [other for other in images if other >= name]
            names = after + [other for other in images if other < name]
        names = names[1:]
    raise RuntimeError(f"{shown(folder)}: no image in this folder can be decoded")


def note_bad_image(path, error, skip):
    """List and report a file, once a job; RuntimeError if that makes more than `skip`.

    Workers of all ranks append to one list, each a line at a time. They count after they have
    written theirs.
    """
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if skip == 0:
        raise RuntimeError(f"cannot decode {shown(path)}: {reason}") from None
    name = escaped(path)
    with open(LIST, "ab+", buffering=0) as file:
        if name in names_in(file):
            return
        file.write(name + b"\t" + reason.encode(errors="backslashreplace") + b"\n")
        count = len(names_in(file))
    if count > skip:
        raise RuntimeError(
            f"more than {skip} images cannot be decoded; the last is {shown(path)}: {reason}"
        ) from None
    line = f"{program()}: skipped {shown(path)}: {reason} ({count} of at most {skip})"
    print(line, file=sys.stderr, flush=True)


def names_in(file) -> "set[bytes]":
    """The names in an open list."""
    file.seek(0)
    return {line.partition(b"\t")[0] for line in file.read().split(b"\n") if line}


def escaped(path: str) -> bytes:
    """The bytes of a path, which need not be text, without those that a line and its tab need."""
    return re.sub(rb"[\0-\x1f\x7f\\]", lambda one: b"\\x%02x" % one[0][0], os.fsencode(path))


def shown(path: str) -> str:
    """A path as a message can have it, on one line."""
    return escaped(path).decode(errors="backslashreplace")
