"""The folders of a data set: its classes, and what ImageFolder would read in another way."""

import os
import re

from torchvision import datasets

from .terminal import exit_with_error, warn

LAYOUT = "expected images under DIR/train/CLASS/ and DIR/val/CLASS/"
# What notebooks, macOS and file servers keep beside the images, or what nobody sees.
HIDDEN = re.compile(r"/(\.[^/]*|(@eaDir|@Recycle|#recycle|#snapshot|__MACOSX)(?=/))")


def class_names(folder: str) -> "list[str]":
    """The names of the folders in `folder`, in the order in which ImageFolder numbers them.

    No names if `folder` is not a folder.
    """
    if not os.path.isdir(folder):
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def check(args):
    """End, before anything has started, if ImageFolder would misread the data set `args.data`."""
    train = checked_classes(os.path.join(args.data, "train"))
    folder = os.path.join(args.data, "val")
    val = checked_classes(folder)
    if len(val) == 1 < len(train):
        exit_with_error(f"{folder}: {val[0]} is the only class, train/ has {len(train)}; {LAYOUT}")
    unknown = sorted(set(val) - set(train))
    if unknown:
        exit_with_error(f"{folder}: train/ has no class {', '.join(unknown)}")
    missing = sorted(set(train) - set(val))
    if missing:
        some = ", ".join(missing[:5] + ["..."] * (len(missing) > 5))
        count = f"{len(missing)} of the {len(train)} classes"
        warn(f"{folder}: no images of {count} in train/: {some}")


def checked_classes(folder: str) -> "list[str]":
    """The class names in `folder`; ends the run in one line unless each has an image."""
    names = class_names(folder)
    hidden = [name for name in names if HIDDEN.match(f"/{name}/")]
    if hidden:
        exit_with_error(
            f"{folder}: a hidden folder would count as a class, remove it: {', '.join(hidden)}"
        )
    if os.path.isdir(folder):
        files = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
        loose = next(filter(datasets.folder.is_image_file, files), None)
        if loose:
            exit_with_error(f"{folder}: {loose} is in no class folder; {LAYOUT}")
    if not names:
        exit_with_error(f"{folder}: there are no class folders; {LAYOUT}")
    for name in names:
        path = os.path.join(folder, name)
        walk = os.walk(path, followlinks=True)
        if not any(datasets.folder.is_image_file(file) for _, _, files in walk for file in files):
            exit_with_error(f"{path}: there are no images; {LAYOUT}")
    return names


def relabel_like(dataset, training):
    """Give `dataset`, in place, the labels that `training` has for the same folder names.

    Both are ImageFolders. ImageFolder numbers what it finds, so a class that only `training` has
    would shift the numbers of all after it. The run ends in one line if either has hidden images.
    """
    for images in (training, dataset):
        refuse_hidden(images)
    labels = [training.class_to_idx[name] for name in dataset.classes]
    dataset.samples = dataset.imgs = [(path, labels[label]) for path, label in dataset.samples]
    dataset.targets = [label for _, label in dataset.samples]
    dataset.classes, dataset.class_to_idx = training.classes, training.class_to_idx


def refuse_hidden(dataset):
    """End the run if ImageFolder has found hidden images, at any depth below a class folder."""
    root = str(dataset.root)
    found = [HIDDEN.search(path, len(root)) for path, _ in dataset.samples]
    hidden = [one.string[len(root) : one.end()].lstrip("/") for one in found if one]
    if hidden:
        places = sorted(set(hidden))
        some = ", ".join(places[:5] + ["..."] * (len(places) > 5))
        count = f"{len(hidden)} in all"
        exit_with_error(f"{root}: hidden images would count, {count}; remove them: {some}")
