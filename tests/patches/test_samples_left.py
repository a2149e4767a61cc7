"""Order and augmentation follow from seed and epoch; a resumed epoch has what is left of it."""

import random

import torch
from builds import run_worker


class Drawn(dict):
    """Images that are random numbers."""

    def __missing__(self, index):
        return random.random(), torch.rand(1).item()


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        loader, _ = run_worker(module, monkeypatch, "-b", "2").loaders
        sampler, images = loader.keywords["sampler"], loader.dataset
        run = sampler.run
        run.epoch = 5
        whole = list(sampler)
        assert sorted(index for index, _ in whole) == [0, 1, 2]
        run.first_epoch, run.images = 5, 2
        assert list(sampler) == whole[2:]
        run.epoch = 6
        assert {origin for _, origin in sampler} != {origin for _, origin in whole}
        if module is distributed:
            assert sampler.sampler.seed == run.seed
        images.images = Drawn()
        assert images[0, (7, 1)] == images[0, (7, 1)]
        samples = [(0, (7, 1)), (1, (7, 1)), (0, (8, 1)), (0, (7, 2))]
        assert len({images[sample] for sample in samples}) == len(samples)
