"""--repeats: an epoch that has each of its images several times, augmented in other ways.

Repeated augmentation: Hoffer et al. 2020, "Augment your batch" (https://arxiv.org/abs/1901.09335);
Berman et al. 2019 (https://arxiv.org/abs/1902.05509). torchvision's recipes have it, too.
"""

import torch
import torch.utils.data
from torch.utils.data.distributed import DistributedSampler

from . import seeds


def add_options(parser):
    parser.add_argument(
        "--repeats",
        default=1,
        type=int,
        metavar="N",
        help="have each image N times in an epoch, augmented anew each time, and of the images "
        "only one in N: the epoch is as long as before (default: 1)",
    )


def sampler(images, args) -> "DistributedSampler[int]":
    """The order in which this rank trains `images`: torch's, with --repeats a `Repeated` one."""
    return Repeated(images, args.repeats) if args.repeats > 1 else DistributedSampler(images)


def shuffled(images, run) -> seeds.SamplesLeft:
    """What an epoch of one process has left, in random order: `seeds.shuffled`, with --repeats."""
    if run.args.repeats == 1:
        return seeds.shuffled(images, run)
    return seeds.SamplesLeft(RepeatedAlone(images, run.args.repeats), run)


def copies(order: "list[int]", times: int, positions: range):
    """What stands at `positions` if each index in `order` stands there `times` times in a row.

    Pairs (index, copy), with copies from 0 on. Past its end the order begins again.
    """
    for position in positions:
        number, copy = divmod(position, times)
        yield order[number % len(order)], copy


class Repeated(DistributedSampler[int]):
    """torch's order of the whole epoch, each image `times` times in a row, as far as it is long.

    Ranks take turns in it. So with as many ranks as copies, or more, those of an image are on
    different ranks, in the same step; the order, and what is done of it after some steps, is that
    of any number of ranks. It gives pairs (index, copy), since copies need other seeds.
    """

    def __init__(self, images, times: int):
        super().__init__(images)
        self.times = times

    def __iter__(self):
        whole: DistributedSampler[int] = DistributedSampler(self.dataset, 1, 0, seed=self.seed)
        whole.set_epoch(self.epoch)
        return copies([*whole], self.times, range(self.rank, self.total_size, self.num_replicas))


class RepeatedAlone(torch.utils.data.RandomSampler):
    """The same for one process, with the order that RandomSampler draws."""

    def __init__(self, images, times: int):
        super().__init__(images)
        self.times = times

    def __iter__(self):
        return copies([*super().__iter__()], self.times, range(len(self)))
