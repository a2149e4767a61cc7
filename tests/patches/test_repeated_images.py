"""With --repeats each image comes several times, augmented anew; without, the order is as ever."""

import random

from builds import run_worker


class Drawn(dict):
    """Images that are random numbers."""

    def __missing__(self, index):
        return random.random()


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        assert module.parser.parse_args(["--repeats", "3"]).repeats == 3
        samples = {}
        for times in (1, 3):
            argv = ("-b", "2", "--seed", "4", "--repeats", str(times))
            loader, _ = run_worker(module, monkeypatch, *argv).loaders
            sampler = loader.keywords["sampler"]
            assert len(sampler) == 3
            samples[times] = list(sampler)
        assert sorted(index for index, _ in samples[1]) == [0, 1, 2]
        assert [index for index, _ in samples[3]] == [samples[1][0][0]] * 3
        assert {origin for _, origin in samples[1]} == {(4, 0)}
        loader.dataset.images = Drawn()
        assert len({loader.dataset[sample] for sample in samples[3]}) == 3
    seen = []
    for rank in range(3):
        argv = ("-b", "3", "--seed", "4", "--repeats", "3")
        worker = run_worker(distributed, monkeypatch, *argv, rank=rank, world=3)
        seen += list(worker.loaders[0].keywords["sampler"])
    assert len(seen) == len(set(seen)) == 3 and len({index for index, _ in seen}) == 1
