"""Inserted by `bad_images`."""

import argparse
import contextlib
import os
import sys

import torchvision.datasets as datasets

from patches.added.fail import fail

parser = argparse.ArgumentParser()
parser.add_argument('--skip-bad-images',
                    default=0,
                    type=int,
                    metavar='N',
                    help='go on where up to N training images cannot be decoded, with the next of their folder in '
                    'their place; skipped_images.txt in the output folder lists and counts them, so hosts '
                    'that do not share that directory may each skip N (default: 0, the first ends the run)')


def check_images(args):
    """Begin the list of skipped images anew, on each host: it may be a list of its own.

    No rank loads an image before the first one of its host has been here: to start a process group takes all of them.
    """
    if args.skip_bad_images < 0:
        fail('--skip-bad-images {}: expected is 0 or more'.format(args.skip_bad_images))
    if int(os.environ.get('LOCAL_RANK', 0)) == 0:
        with contextlib.suppress(FileNotFoundError):  # also where another host has just removed it
            os.remove('skipped_images.txt')


def load_image(path, skip=0):
    """The image in a file; an error that names the file where it cannot be decoded.

    Up to `skip` such files may be in the job: then the next image of the folder, which has the same label,
    takes the place, so that batches keep their size on every rank.
    """
    folder, name = os.path.split(path)
    names = [name]
    while names:
        try:
            return datasets.folder.default_loader(os.path.join(folder, names[0]))
        except Exception as error:
            note_bad_image(os.path.join(folder, names[0]), error, skip)
        if names == [name]:
            images = sorted(other for other in os.listdir(folder) if datasets.folder.is_image_file(other))
            names = [other for other in images if other >= name] + [other for other in images if other < name]
        names = names[1:]
    raise RuntimeError('{}: no image in this folder can be decoded'.format(folder))


def note_bad_image(path, error, skip):
    """List and report a file, once a job; an error where that makes more than `skip`.

    Workers of all ranks append to one list, each a line at a time, and count when they have written theirs.
    """
    reason = '{}: {}'.format(type(error).__name__, ' '.join(str(error).split()))
    if skip == 0:
        raise RuntimeError('cannot decode {}: {}'.format(path, reason)) from None
    with open('skipped_images.txt', 'a+') as file:
        file.seek(0)
        known = {line.partition('\t')[0] for line in file}
        if path in known:
            return
        file.write('{}\t{}\n'.format(path, reason))
        file.flush()
        file.seek(0)
        count = len({line.partition('\t')[0] for line in file})
    if count > skip:
        raise RuntimeError('more than {} images cannot be decoded; the last is {}: {}'.format(skip, path,
                                                                                             reason)) from None
    print('{}: skipped {}: {} ({} of at most {})'.format(os.path.basename(sys.argv[0]), path, reason, count, skip),
          file=sys.stderr, flush=True)
