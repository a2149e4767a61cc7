"""What seeds, order and bookkeeping cost the process that trains, in each step.

    python benchmarks/order.py [--batch-size 2048] [--steps 60]

A plain DataLoader, and one as the built scripts make it, go through images that cost nothing, of a
data set of ImageNet's size; the second with all calls of a step that `standard` adds to the loop.
Milliseconds of CPU: of the main thread, and of its process with the threads that send indices to
the workers.  The first step of an epoch does not count; drawing the order is among the parts below.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import torch
from timing import ROOT
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

sys.path.insert(0, str(ROOT))
from patches.support import checkpoint, meters, seeds, stop

IMAGES = 1281167
RANKS = 8  # of the distributed order


class Images(torch.utils.data.Dataset):
    """Each image is its number."""

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        return index


class Steps:
    """What a step of `standard` does besides training."""

    def __init__(self, batch_size: int):
        args = SimpleNamespace(start_epoch=0, seed=1, batch_size=batch_size, save_every=500)
        self.model = torch.nn.Linear(1, 1)
        self.run = checkpoint.Run(self.model, torch.optim.SGD(self.model.parameters(), 1), args)
        loss = torch.zeros((), dtype=torch.float64)
        self.loss = SimpleNamespace(val=loss, avg=loss)
        self.finite = meters.FiniteCheck(self.loss, self.model, self.run.optimizer, 0)
        self.parts: dict[str, Callable[[int], object]] = {
            "seeds.seed_step": lambda step: seeds.seed_step(self.run, 0, step),
            "finite.check": self.finite.check,
            "run.reached": lambda step: self.run.reached(0, step + 1, []),
            "stop.is_due": lambda step: stop.is_due(),
            "run.save_is_due": lambda step: self.run.save_is_due(args.save_every),
        }

    def __call__(self, step: int):
        for part in self.parts.values():
            part(step)


def spent(loader, steps: int, after: Callable[[int], object]) -> list[list[float]]:
    """Milliseconds of each step: of the main thread, and of its process. Checks the batches."""
    costs, seen = [], set()
    batches = iter(loader)
    for step in range(steps):
        begin = time.thread_time(), time.process_time()
        batch = next(batches)
        after(step)
        end = time.thread_time(), time.process_time()
        costs.append([1000 * (b - a) for a, b in zip(begin, end)])
        seen.update(batch.tolist())
        time.sleep(0.05)  # in a step of training; the workers and the threads get on
    assert len(seen) == steps * loader.batch_size, "an image came twice"
    return costs


def timed(calls: Iterator, count: int) -> float:
    """Median milliseconds of the next of `calls`."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        next(calls)
        found.append(1000 * (time.perf_counter() - begin))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what a step does besides training.")
    add = parser.add_argument
    add("--batch-size", type=int, default=2048)
    add("--steps", type=int, default=60)
    add("--workers", type=int, default=2)
    args = parser.parse_args()
    stop.watch(600)
    images, steps = Images(), Steps(args.batch_size)

    def plain(distributed: bool):
        return DistributedSampler(images, RANKS, 0) if distributed else RandomSampler(images)

    def ours(distributed: bool):
        if distributed:
            return seeds.SamplesLeft(plain(True), steps.run)
        return seeds.shuffled(images, steps.run)

    print("milliseconds of CPU a step       main thread   process")
    for name, distributed in (("dataparallel", False), ("distributed", True)):
        medians = []
        for kind, data, sampler, after in (
            ("plain", images, plain(distributed), lambda step: None),
            ("standard", seeds.SeededImages(images), ours(distributed), steps),
        ):
            loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers)
            costs = spent(loader, args.steps, after)
            thread, process = (statistics.median(column) for column in zip(*costs[1:]))
            medians.append((thread, process))
            print(f"{name:12} {kind:18} {thread:12.3f} {process:9.3f}")
        added = [b - a for a, b in zip(*medians)]
        ratios = [b / a for a, b in zip(*medians)]
        print(f"{name:12} {'added':18} {added[0]:12.3f} {added[1]:9.3f}")
        print(f"{name:12} {'ratio':18} {ratios[0]:10.2f} x {ratios[1]:7.2f} x")

    print("\nmilliseconds of each part, alone")
    for kind, sampler in (("plain", plain(False)), ("standard", ours(False))):
        batches = BatchSampler(sampler, args.batch_size, False)
        begin = time.perf_counter()
        indices = next(iter(batches))
        first = 1000 * (time.perf_counter() - begin)
        size = len(ForkingPickler.dumps(indices))
        drawn = iter(batches)
        next(drawn)
        count = min(200, len(batches) - 1)
        sent = iter(lambda batch=indices: ForkingPickler.dumps(batch), None)
        print(f"{kind:12} order of an epoch  {first:8.3f}   with its first batch")
        print(f"{kind:12} order of a batch   {timed(drawn, count):8.3f}")
        print(f"{kind:12} sent to a worker   {timed(sent, 200):8.3f}   {size} bytes, by a thread")
    for name, part in steps.parts.items():
        print(f"{'standard':12} {name:18} {timed(map(part, range(1000)), 1000):8.4f}")


if __name__ == "__main__":
    main()
