"""Inserted by `train_classes`."""

import os

import torchvision.datasets as datasets

from patches.added.class_folders import class_folders
from patches.added.fail import fail
from patches.added.warn_once import warn_once


def check_data(args):
    """Refuse a data set that ImageFolder would read in another way than it is meant, before anything has started."""
    layout = 'expected are DIR/train/CLASS/ and DIR/val/CLASS/, images in each'
    names = {}
    for part in ('train', 'val'):
        folder = os.path.join(args.data, part)
        names[part] = class_folders(folder)
        hidden = [name for name in names[part] if name.startswith('.')]
        if hidden:
            fail('{}: a hidden folder would count as a class, remove it: {}'.format(folder, ', '.join(hidden)))
        if os.path.isdir(folder):
            loose = sorted(entry.name for entry in os.scandir(folder)
                           if entry.is_file() and datasets.folder.is_image_file(entry.name))
            if loose:
                fail('{}: {} is in no class folder; {}'.format(folder, loose[0], layout))
        if not names[part]:
            fail('{}: there are no class folders; {}'.format(folder, layout))
        for name in names[part]:
            files = (file for _, _, some in os.walk(os.path.join(folder, name), followlinks=True) for file in some)
            if not any(datasets.folder.is_image_file(file) for file in files):
                fail('{}: there are no images; {}'.format(os.path.join(folder, name), layout))
    if len(names['val']) == 1 < len(names['train']):
        fail('{}: {} is the only class, train/ has {}; {}'.format(folder, names['val'][0], len(names['train']), layout))
    unknown = sorted(set(names['val']) - set(names['train']))
    if unknown:
        fail('{}: train/ has no class {}'.format(folder, ', '.join(unknown)))
    missing = sorted(set(names['train']) - set(names['val']))
    if missing:
        some = ', '.join(missing[:5] + ['...'] * (len(missing) > 5))
        warn_once('{}: no images of {} of the {} classes in train/: {}'.format(folder, len(missing),
                                                                              len(names['train']), some))


def as_trained(dataset, training):
    """`dataset` with the labels that `training` gives to its folders: by name, whichever others there are."""
    labels = [training.class_to_idx[name] for name in dataset.classes]
    dataset.samples = dataset.imgs = [(path, labels[label]) for path, label in dataset.samples]
    dataset.targets = [label for _, label in dataset.samples]
    dataset.classes, dataset.class_to_idx = training.classes, training.class_to_idx
    return dataset
