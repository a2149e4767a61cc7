"""Seeds: all that a job draws in training follows from its seed, the epoch, the step and the rank.

So a resumed run draws what the undisturbed one would have drawn, with any number of ranks, and no
checkpoint holds the state of a random generator.
"""

import itertools
import random

import torch
import torch.utils.data

from . import ranks, stop


def of_rank(seed: int) -> int:
    """A seed for this rank, the given one for rank 0: with equal seeds all ranks augment alike.

    The initial weights are those of rank 0 anyway: DistributedDataParallel sends them to all.
    """
    rank = ranks.rank()
    return derived(seed, rank) if rank else seed


def derived(*parts) -> int:
    """A seed of 63 bits that follows from these numbers; other numbers give another seed."""
    return random.Random(" ".join(map(str, parts))).getrandbits(63)


def draw(seed: "int | None") -> int:
    """The seed of the job: `seed`, or if that is None a number that rank 0 draws. Collective."""
    return int(ranks.broadcast(random.SystemRandom().getrandbits(31) if seed is None else seed))


def seed_step(run, epoch: int, step: int):
    """Seed what this step draws on this rank, in a model with dropout. Call it once per batch.

    Each device of DataParallel gets a seed of its own: with the same one, all would drop the same
    units.

    It also tells the watch in `stop` that the batch is there: a rank that still waits for its
    batch is behind the others, and is named if the job hangs.
    """
    stop.beat()
    seed = derived(run.seed, epoch, step + 1, ranks.rank())
    # torch.manual_seed would go through all kinds of devices, and takes half a millisecond.
    torch.default_generator.manual_seed(seed)
    device = next(run.model.parameters()).device
    if device.type == "cpu":
        return
    module = getattr(torch, device.type)
    if not hasattr(module, "default_generators"):  # Apple's: it has one device
        module.manual_seed(seed)
        return
    for number, index in enumerate(getattr(run.model, "device_ids", None) or [device.index]):
        own = derived(seed, number) if number else seed
        module.default_generators[index].manual_seed(own)


class SamplesLeft(torch.utils.data.Sampler[tuple[int, tuple[int, ...]]]):
    """The samples of `sampler` that epoch `run.epoch` has left: pairs (index, (seed, epoch)).

    `seed` is `run.seed`. Order and augmentation follow from these three numbers alone, whichever
    process loads a sample. The length is that of the whole epoch.
    """

    def __init__(self, sampler, run):
        self.sampler, self.run = sampler, run

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        seed, epoch = self.run.seed, self.run.epoch
        if isinstance(self.sampler, torch.utils.data.RandomSampler):
            self.sampler.generator = torch.Generator().manual_seed(derived(seed, epoch))
        elif isinstance(self.sampler, torch.utils.data.DistributedSampler):
            self.sampler.seed = seed
        batch_size = self.run.args.batch_size
        first = self.run.first_step(len(self), batch_size) * batch_size
        for drawn in itertools.islice(self.sampler, first, None):
            # A sampler that repeats images gives pairs: (index, number of the copy).
            index, *copy = drawn if isinstance(drawn, tuple) else (drawn,)
            yield index, (seed, epoch, *copy)


def shuffled(images, run) -> SamplesLeft:
    """What an epoch of one process has left, in random order."""
    return SamplesLeft(torch.utils.data.RandomSampler(images), run)


class SeededImages(torch.utils.data.Dataset[object]):
    """The data set `images`, indexed by (index, (seed, epoch)): each sample has a seed of its own.

    The seed is derived here, so by the loading processes: it takes 6 microseconds a sample, and the
    training process would need 12 ms for a batch of 2,048.
    """

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, sample):
        index, origin = sample
        seed = derived(*origin, index)
        # Without workers, these generators are those of the training itself.
        states = random.getstate(), torch.get_rng_state()
        random.seed(seed)
        torch.default_generator.manual_seed(seed)
        try:
            return self.images[index]
        finally:
            random.setstate(states[0])
            torch.set_rng_state(states[1])
