"""Inserted by `expected_world`."""

import argparse
import os

from patches.added.fail import fail

parser = argparse.ArgumentParser()
parser.add_argument('--expect-world',
                    default=None,
                    type=int,
                    metavar='N',
                    help='end at once unless the job has N processes on all hosts together (default: any number)')


def check_expected_world(args):
    """Refuse a job of another size: hosts that do not find each other would train one by one, each for itself."""
    world = int(os.environ.get('WORLD_SIZE', 1))
    if args.expect_world not in (None, world):
        fail('--expect-world {}: the processes of this job are {}'.format(args.expect_world, world))
