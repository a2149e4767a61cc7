"""Images that cannot be decoded: named, and up to a number skipped, listed and counted."""

import contextlib
import functools
import os
import sys

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


def check(args):
    """Start a new list of skipped images, on each host: it may be a list of its own.

    The first process of a host does so before any of its ranks loads an image: they all join the
    process group in between.
    """
    if ranks.is_first_on_host():
        with contextlib.suppress(FileNotFoundError):  # also if another host has just removed it
            os.remove(LIST)


def skipping(skip: int):
    """A loader for ImageFolder that goes on where up to `skip` images of the job are bad."""
    return functools.partial(load_image, skip=skip)


def load_image(path, skip=0):
    """The image in a file, as RGB; RuntimeError with the file's name if it cannot be decoded.

    The job may have up to `skip` such files. For each of them comes the next image of the folder,
    which has the same label, so batches keep their size on every rank.
    """
    folder, name = os.path.split(path)
    names = [name]
    while names:
        try:
            return datasets.folder.default_loader(os.path.join(folder, names[0]))
        except Exception as error:
            note_bad_image(os.path.join(folder, names[0]), error, skip)
        if names == [name]:
            images = sorted(filter(datasets.folder.is_image_file, os.listdir(folder)))
            after = [other for other in images if other >= name]
            names = after + [other for other in images if other < name]
        names = names[1:]
    raise RuntimeError(f"{folder}: no image in this folder can be decoded")


def note_bad_image(path, error, skip):
    """List and report a file, once a job; RuntimeError if that makes more than `skip`.

    Workers of all ranks append to one list, each a line at a time. They count after they have
    written theirs.
    """
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if skip == 0:
        raise RuntimeError(f"cannot decode {path}: {reason}") from None
    with open(LIST, "a+") as file:
        file.seek(0)
        known = {line.partition("\t")[0] for line in file}
        if path in known:
            return
        file.write(f"{path}\t{reason}\n")
        file.flush()
        file.seek(0)
        count = len({line.partition("\t")[0] for line in file})
    if count > skip:
        raise RuntimeError(
            f"more than {skip} images cannot be decoded; the last is {path}: {reason}"
        ) from None
    line = f"{program()}: skipped {path}: {reason} ({count} of at most {skip})"
    print(line, file=sys.stderr, flush=True)
