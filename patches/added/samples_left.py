"""Inserted by `samples_left`."""

import itertools
import os
import random

import torch
import torch.utils.data

from patches.added.job_seed import derived_seed, job_seed


class SamplesLeft(torch.utils.data.Sampler):
    """The samples of `sampler` that a resumed epoch has left, each with the seed of its augmentation.

    Order and seeds follow from the seed of the job and the epoch alone. So a resumed run goes on with what the
    whole one would have drawn, whichever process loads a sample, and no state of loading has to be saved.
    """
    def __init__(self, sampler, args):
        self.sampler, self.args = sampler, args
        self.seed = job_seed(args)

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        epoch = self.args.epoch
        if isinstance(self.sampler, torch.utils.data.RandomSampler):
            self.sampler.generator = torch.Generator().manual_seed(derived_seed(self.seed, epoch))
        first = first_step(self.args, epoch, self) * self.args.batch_size
        for index in itertools.islice(self.sampler, first, None):
            yield index, derived_seed(self.seed, epoch, index)


class SeededImages(torch.utils.data.Dataset):
    """`images`, each augmented by the seed that comes with its index."""
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, sample):
        index, seed = sample
        states = random.getstate(), torch.get_rng_state()  # without workers they are those of the training itself
        random.seed(seed)
        torch.default_generator.manual_seed(seed)
        try:
            return self.images[index]
        finally:
            random.setstate(states[0])
            torch.set_rng_state(states[1])


def each_epoch(epochs, args):
    """`epochs`, and the present one in `args`, where samplers look for it."""
    for args.epoch in epochs:
        yield args.epoch


def first_step(args, epoch, sampler):
    """With which step of `epoch` the run begins: 0, unless it resumes in the middle of this one."""
    if epoch != args.start_epoch:
        return 0
    images, world = getattr(args, 'images_done', 0), int(os.environ.get('WORLD_SIZE', 1))
    if images > world * (len(sampler) - 1):
        return -(-len(sampler) // args.batch_size)  # all: what the ranks have more than there are images is repeated
    return images // world // args.batch_size
