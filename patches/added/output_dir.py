"""Inserted by `output_dir`."""

import argparse
import glob
import os
import tempfile

from patches.added.fail import fail
from patches.added.rank_zero import is_rank_zero

parser = argparse.ArgumentParser()
parser.add_argument('--output-dir',
                    default='.',
                    metavar='DIR',
                    help='folder that everything is written to; it is made where there is none (default: the working '
                    'directory)')


def in_output_dir(args):
    """`args`, and the output folder as working directory, whose other paths stay what they were.

    Rank 0, which alone writes, tries whether it can, and takes away what a run that was killed had begun to write.
    """
    for name in ('data', 'resume'):
        path = getattr(args, name, None)
        if path and path != 'auto':
            setattr(args, name, os.path.abspath(path))
    try:
        os.makedirs(args.output_dir, exist_ok=True)
        os.chdir(args.output_dir)
        if is_rank_zero() and not args.evaluate:
            with tempfile.TemporaryFile(dir='.') as file:
                file.write(b'0')
            for path in glob.glob('*.pth.tar.tmp') + glob.glob('*.csv.tmp'):
                os.remove(path)
    except OSError as error:
        fail('--output-dir {}: cannot be written to: {}'.format(args.output_dir, error.strerror))
    return args
