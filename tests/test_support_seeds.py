"""`support.seeds`: what a job draws follows from its seed, the epoch, the step and the rank."""

import random
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from patches.support import checkpoint, ranks, seeds, stop  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One process, and no watch."""
    monkeypatch.setattr(stop, "_watch", None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


# A seed for each rank


def of_ranks(monkeypatch, seed, ranks=64):
    found = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        found.append(seeds.of_rank(seed))
    return found


@pytest.mark.parametrize("seed", [0, 1, -3, 2**40])
def test_ranks_have_seeds_of_their_own_that_repeat(monkeypatch, seed):
    first = of_ranks(monkeypatch, seed)
    assert first[0] == seed
    assert len(set(first)) == len(first)
    assert of_ranks(monkeypatch, seed) == first


def test_neighbouring_seeds_share_no_ranks_seed(monkeypatch):
    found = [value for seed in range(10) for value in of_ranks(monkeypatch, seed)]
    assert len(set(found)) == len(found)


def test_one_process_without_a_launcher_has_the_seed_itself():
    assert seeds.of_rank(17) == 17


def test_torch_takes_every_seed(monkeypatch):
    with torch.random.fork_rng(devices=[]):
        for value in of_ranks(monkeypatch, 3, ranks=8):
            torch.manual_seed(value)
            assert torch.initial_seed() == value


def test_seeds_differ_by_each_part():
    parts = ((1, 2, 3), (1, 2, 4), (1, 23), (12, 3), (1, 2), (2, 1))
    assert len({seeds.derived(*some) for some in parts}) == 6


def test_job_has_the_given_seed_or_one_that_is_drawn():
    assert seeds.draw(0) == 0 and seeds.draw(2**62) == 2**62
    drawn = {seeds.draw(None) for _ in range(5)}
    assert len(drawn) > 1 and all(0 <= seed < 2**31 for seed in drawn)


def test_job_seed_is_that_of_rank_0(monkeypatch):
    monkeypatch.setattr(ranks, "broadcast", lambda value: 99)
    assert seeds.draw(None) == 99


# What is left of an epoch


def run_at(epoch, images=0, seed=1, batch_size=4):
    """A run that was resumed in `epoch` with so many images done."""
    args = SimpleNamespace(start_epoch=epoch, seed=seed, batch_size=batch_size)
    state = {"epoch": epoch, "images": images}
    return checkpoint.Run(torch.nn.Linear(1, 1), None, args, state)


def sampled(images, epoch, start=(0, 0), seed=1, batch=4):
    run = run_at(*start, seed=seed, batch_size=batch)
    sampler = seeds.shuffled(range(images), run)
    run.epoch = epoch
    assert len(sampler) == images
    return list(sampler)


def test_a_resumed_epoch_has_the_samples_left_that_the_whole_one_ends_with():
    whole = sampled(10, epoch=2)
    assert sorted(index for index, _ in whole) == list(range(10))
    assert sampled(10, epoch=2) == whole != sampled(10, epoch=3)
    assert sampled(10, epoch=2, seed=5) != whole
    for steps in range(4):
        assert sampled(10, epoch=2, start=(2, 4 * steps)) == whole[4 * steps :]
    assert len(sampled(10, epoch=3, start=(2, 8))) == 10


def test_order_of_another_sampler_is_its_own():
    sampler = seeds.SamplesLeft(range(5), run_at(0, images=2, batch_size=2))
    assert [index for index, _ in sampler] == [2, 3, 4]


def test_an_image_is_augmented_by_its_seed_and_leaves_the_generators_alone():
    class Draws(list):
        def __getitem__(self, index):
            return index, random.random(), torch.rand(1).item()

    images = seeds.SeededImages(Draws(range(3)))
    assert len(images) == 3
    random.seed(0)
    torch.manual_seed(0)
    states = random.getstate(), torch.get_rng_state()
    first = images[1, 5]
    assert images[2, 9][1:] != first[1:] and images[1, 5] == first
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])


# What a step draws


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_epoch_draws_in_its_steps_what_the_whole_one_draws_there(rank, monkeypatch):
    monkeypatch.setenv("RANK", str(rank))
    dropout = torch.nn.Dropout()

    def drawn(epoch, done=0, seed=3):
        run = run_at(epoch, images=done, seed=seed)
        loader = SimpleNamespace(sampler=range(20), batch_size=4)
        first = run.begin_epoch(epoch, loader, [])
        torch.manual_seed(done)  # whatever state the process is in
        masks = {}
        for step in range(first, 5):
            seeds.seed_step(run, epoch, step)
            masks[step] = dropout(torch.ones(32)).tolist()
        return masks

    whole = drawn(2)
    assert sorted(whole) == list(range(5)) and len({tuple(mask) for mask in whole.values()}) == 5
    assert drawn(2, done=12) == {step: whole[step] for step in (3, 4)}
    assert drawn(3)[0] != whole[0] != drawn(2, seed=4)[0]
    monkeypatch.setenv("RANK", str(1 - rank))
    assert drawn(2)[0] != whole[0]


def test_device_of_the_model_is_seeded_too(monkeypatch):
    given = []
    monkeypatch.setattr("torch.cuda.manual_seed_all", given.append)
    parameter = SimpleNamespace(device=torch.device("cuda", 1))
    run = SimpleNamespace(seed=3, model=SimpleNamespace(parameters=lambda: iter([parameter])))
    seeds.seed_step(run, epoch=2, step=0)
    assert given == [torch.default_generator.initial_seed()] == [seeds.derived(3, 2, 1, 0)]


def test_a_step_that_has_its_batch_tells_the_watch(monkeypatch):
    monkeypatch.setattr(stop, "_watch", SimpleNamespace(beats=0))
    seeds.seed_step(run_at(0), 0, 0)
    assert stop._watch.beats == 1
