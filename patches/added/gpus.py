"""Inserted by `configurable_gpus`."""

import argparse

import torch

from patches.added.gpu_ids import gpu_ids

parser = argparse.ArgumentParser()
parser.add_argument('--gpus',
                    default=None,
                    metavar='IDS',
                    help='GPUs to use, for example 0,2 or 0-7; the first one holds the model and gathers '
                    'the outputs (default: every visible GPU)')


def select_gpus(spec, parser, optional=False):
    """The GPU ids that `--gpus` asks for, the home device first; all that are visible where it is None.

    Ends the program with one line and status 2 where they cannot be had. Where they are `optional`, there
    may be none at all, if none was asked for.
    """
    visible = torch.cuda.device_count()
    try:
        gpus = list(range(visible)) if spec is None else gpu_ids(spec)
        if not visible and not (optional and spec is None):
            raise ValueError('no GPU is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES')
        if max(gpus, default=-1) >= visible:
            raise ValueError('GPU {} was asked for, {} visible: 0 to {}'.format(max(gpus), visible, visible - 1))
    except ValueError as error:
        parser.exit(2, '{}: error: --gpus: {}\n'.format(parser.prog, error))
    return gpus
