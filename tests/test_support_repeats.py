"""`support.repeats`: which images an epoch has, how often, where, and in which order."""

import collections
import random
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DistributedSampler  # noqa: E402

from patches.support import checkpoint, repeats, seeds  # noqa: E402


@pytest.fixture(autouse=True)
def job(monkeypatch):
    """Any number of ranks, one after the other: a function says which one this is."""

    def as_rank(rank, world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setattr("torch.distributed.is_available", lambda: True)
        monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: world)
        monkeypatch.setattr("torch.distributed.get_rank", lambda *group: rank)
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)

    as_rank(0, 1)
    return as_rank


def run_of(times, epoch=0, images=0, batch_size=2):
    args = SimpleNamespace(start_epoch=0, seed=5, batch_size=batch_size, repeats=times)
    state = {"epoch": epoch, "images": images}
    return checkpoint.Run(torch.nn.Linear(1, 1), None, args, state)


def of_ranks(job, length, world, times, epoch=2, **more):
    """What each rank has left of an epoch."""
    found = []
    for rank in range(world):
        job(rank, world)
        run = run_of(times, epoch, **more)
        sampler = repeats.sampler(range(length), run.args)
        sampler.set_epoch(epoch)
        found.append(list(seeds.SamplesLeft(sampler, run)))
        assert len(sampler) == len(DistributedSampler(range(length), world, rank))
    return found


def in_turn(parts):
    """The order of the whole job."""
    return [one for step in zip(*parts) for one in step]


def torchs_order(length, epoch=2, seed=5):
    """The permutation by its definition in torch's DistributedSampler."""
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(length, generator=generator).tolist()


@pytest.mark.parametrize("length", [1, 5, 24, 31])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("times", [2, 3, 4])
def test_an_epoch_has_each_image_in_its_order_several_times_in_a_row(job, length, world, times):
    parts = of_ranks(job, length, world, times)
    total = -(-length // world) * world
    assert {len(part) for part in parts} == {total // world}
    wanted = [index for index in torchs_order(length) for _ in range(times)]
    wanted = (wanted * (1 + total // len(wanted)))[:total]
    samples = in_turn(parts)
    assert [index for index, _ in samples] == wanted
    if length % times == 0 and total == length:
        assert len(set(wanted)) == length // times
        assert set(collections.Counter(wanted).values()) == {times}


@pytest.mark.parametrize("world", [3, 4, 8])
def test_copies_are_on_different_ranks_and_never_alike(job, world):
    parts = of_ranks(job, 48, world, 3)
    for part in parts:
        indices = [index for index, _ in part]
        assert len(set(indices)) == len(indices)
    samples = in_turn(parts)
    assert len(set(samples)) == len(samples) == 48

    class Draws:
        def __getitem__(self, index):
            return random.random()

    images = seeds.SeededImages(Draws())
    assert len({images[sample] for sample in samples}) == 48


def test_the_order_is_that_of_any_number_of_ranks(job):
    alone = in_turn(of_ranks(job, 24, 1, 3))
    for world in (2, 3, 4, 8):
        assert in_turn(of_ranks(job, 24, world, 3)) == alone


@pytest.mark.parametrize("before, after", [(1, 2), (2, 4), (4, 1), (3, 3)])
def test_an_epoch_that_is_resumed_on_other_ranks_has_what_is_left(job, before, after):
    whole = in_turn(of_ranks(job, 48, before, 3))
    done = 3 * 2 * before  # three steps, of two images a rank
    done -= done % (2 * after)  # whole steps of the job that goes on
    left = in_turn(of_ranks(job, 48, after, 3, images=done))
    assert left == whole[done:]


@pytest.mark.parametrize("world", [1, 3])
def test_with_one_copy_the_order_is_torchs_to_the_byte(job, world):
    for rank in range(world):
        job(rank, world)
        sampler = repeats.sampler(range(31), SimpleNamespace(repeats=1))
        assert type(sampler) is DistributedSampler
        sampler.set_epoch(2)
        other = DistributedSampler(range(31), world, rank)
        other.set_epoch(2)
        assert list(sampler) == list(other)
    run = run_of(1, epoch=2)
    assert list(repeats.shuffled(range(31), run)) == list(seeds.shuffled(range(31), run))


@pytest.mark.parametrize("length, times", [(30, 3), (31, 4), (2, 5)])
def test_one_process_has_the_order_of_its_own_sampler_repeated(length, times):
    plain = [index for index, _ in seeds.shuffled(range(length), run_of(1, epoch=2))]
    sampler = repeats.shuffled(range(length), run_of(times, epoch=2))
    assert len(sampler) == length
    whole = list(sampler)
    wanted = [(index, (5, 2, copy)) for index in plain for copy in range(times)]
    assert whole == wanted[:length]
    left = repeats.shuffled(range(length), run_of(times, epoch=2, images=length // 2 // 2 * 2))
    assert list(left) == whole[length // 2 // 2 * 2 :]


def test_epochs_have_other_images(job):
    found = set()
    for epoch in range(6):
        found |= {index for index, _ in in_turn(of_ranks(job, 24, 2, 3, epoch=epoch))}
    assert len(found) > 16
