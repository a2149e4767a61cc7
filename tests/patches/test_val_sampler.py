"""Each validation image goes to one rank, once, whatever the number of ranks."""

import itertools

from builds import data_set, run_worker


def serves(distributed, dataparallel, monkeypatch):
    for classes, world in (("abcde", 4), ("abc", 8), ("abcdefghi", 1)):
        argv, slices = ("--data", data_set(classes, classes), "-b", str(8 * world)), []
        for rank in range(world):
            seen = run_worker(distributed, monkeypatch, *argv, rank=rank, world=world)
            slices.append(list(seen.loaders[1].sampler))
        assert sorted(itertools.chain(*slices)) == list(range(len(classes)))
        assert slices == [sorted(indices) for indices in slices]
