"""`support.seeds`: what a job draws follows from its seed, the epoch, the step and the rank."""

import os
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from conftest import REPO  # noqa: E402

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


@pytest.mark.parametrize("given", [None, 5, 9])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_resumed_epoch_keeps_the_order_of_its_checkpoint(world, given, monkeypatch):
    """B4: all that an epoch draws follows from the seed in the checkpoint, whatever --seed says
    later.
    """
    args = SimpleNamespace(start_epoch=0, seed=5, batch_size=4)
    first = checkpoint.Run(torch.nn.Linear(1, 1), None, args)
    state = {"epoch": 2, "images": 24, "seed": first.seed}
    again = SimpleNamespace(start_epoch=0, seed=given, batch_size=4)
    resumed = checkpoint.Run(torch.nn.Linear(1, 1), None, again, state)
    first.epoch = 2
    monkeypatch.setenv("WORLD_SIZE", str(world))
    for rank in range(world):
        orders = []
        for run in (first, resumed):
            sampler = torch.utils.data.DistributedSampler(
                range(60), world, rank, seed=run.args.seed or 0
            )
            sampler.set_epoch(2)
            orders.append(list(seeds.SamplesLeft(sampler, run)))
        whole, left = orders
        assert left == whole[24 // world :]
        assert {origin for _, origin in left} == {(5, 2)}
    if world == 1:
        whole, left = (list(seeds.shuffled(range(60), run)) for run in (first, resumed))
        assert left == whole[24:]


def test_distributed_order_follows_the_seed_that_was_drawn_without_one():
    """B4: the order of seed 0 would be that of every run without --seed."""

    def order(seed):
        sampler = torch.utils.data.DistributedSampler(range(60), 1, 0)
        return [index for index, _ in seeds.SamplesLeft(sampler, run_at(0, seed=seed))]

    assert order(0) == order(0) != order(1)
    assert sorted(order(2**63 - 1)) == list(range(60))  # the greatest --seed


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
    first = images[1, (5, 0)]
    assert images[1, (5, 0)] == first
    for other in ((2, (5, 0)), (1, (6, 0)), (1, (5, 1))):
        assert images[other][1:] != first[1:]
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])


def test_augmentation_seeds_are_derived_where_images_are_loaded(monkeypatch):
    """B19: 6 microseconds a sample are 12 ms a step at batch 2,048 in the process that trains."""
    derived, calls = seeds.derived, []
    monkeypatch.setattr(seeds, "derived", lambda *parts: calls.append(parts) or derived(*parts))
    sampler = seeds.shuffled(range(2048), run_at(3, seed=7))
    pairs = list(sampler)
    assert len(calls) == 1  # the seed of the order
    assert {origin for _, origin in pairs} == {(7, 3)}

    class Draws:
        def __getitem__(self, index):
            return random.random()

    loaded = seeds.SeededImages(Draws())[pairs[0]]
    assert (
        loaded == random.Random(derived(7, 3, pairs[0][0])).random()
    )  # as the checkpoints of old have it


# What a step draws


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_epoch_draws_in_its_steps_what_the_whole_one_draws_there(rank, monkeypatch):
    monkeypatch.setenv("RANK", str(rank))
    dropout = torch.nn.Dropout()

    def drawn(epoch, done=0, seed=3):
        run = run_at(epoch, images=done, seed=seed)
        loader = torch.utils.data.DataLoader(range(20), batch_size=4)
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


def seeds_of_devices(monkeypatch, kind="cuda", index=1, **of_model):
    """What the generators of four devices are seeded with in a step; None for those that stay
    alone.
    """
    generators = [torch.Generator() for _ in range(4)]
    for generator in generators:
        generator.manual_seed(1)
    monkeypatch.setattr(f"torch.{kind}.default_generators", generators, raising=False)
    parameter = SimpleNamespace(device=torch.device(kind, index))
    model = SimpleNamespace(parameters=lambda: iter([parameter]), **of_model)
    seeds.seed_step(SimpleNamespace(seed=3, model=model), epoch=2, step=0)
    assert torch.default_generator.initial_seed() == seeds.derived(3, 2, 1, 0)
    found = [generator.initial_seed() for generator in generators]
    return [None if seed == 1 else seed for seed in found]


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize("of_model", [{}, {"device_ids": None}, {"device_ids": [1]}])
def test_a_rank_seeds_its_own_device_and_no_other(kind, of_model, monkeypatch):
    """B3: the device of a rank gets the seed of the step."""
    step = seeds.derived(3, 2, 1, 0)
    assert seeds_of_devices(monkeypatch, kind, **of_model) == [None, step, None, None]


def test_each_device_of_data_parallel_has_a_seed_of_its_own(monkeypatch):
    """B3: with one seed for all, each GPU has the same dropout mask."""
    step = seeds.derived(3, 2, 1, 0)
    found = seeds_of_devices(monkeypatch, index=3, device_ids=[3, 0, 1])
    assert found == [seeds.derived(step, 1), seeds.derived(step, 2), None, step]
    assert seeds_of_devices(monkeypatch, index=3, device_ids=[3, 0, 1]) == found


def test_device_without_generators_to_name_is_seeded_by_its_module(monkeypatch):
    """B3: Apple's is one, and has one device."""
    given = []
    monkeypatch.setattr("torch.mps.manual_seed", given.append)
    parameter = SimpleNamespace(device=torch.device("mps", 0))
    model = SimpleNamespace(parameters=lambda: iter([parameter]))
    seeds.seed_step(SimpleNamespace(seed=3, model=model), epoch=2, step=0)
    assert given == [seeds.derived(3, 2, 1, 0)]


REPLICAS = """
from types import SimpleNamespace
import torch
from support import seeds

layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout())
model = torch.nn.DataParallel(layers.to("cuda"), [0, 1])
for step in (0, 1, 0):
    seeds.seed_step(SimpleNamespace(seed=3, model=model), 0, step)
    first, second = (model(torch.ones(2, 64)) == 0).tolist()
    print(first != second, first)
"""


def test_dropout_differs_between_replicas_and_repeats(tmp_path):
    """B3: two pretended GPUs, each with a generator of its own, drop different units in the same
    step.
    """
    paths = os.pathsep.join(map(str, (REPO / "tests" / "stand_in", REPO / "patches")))
    command = [sys.executable, "-c", REPLICAS]
    environment = {**os.environ, "PYTHONPATH": paths, "FAKE_GPUS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, other, again = done.stdout.splitlines()
    assert one.startswith("True ") and other.startswith("True ") and one == again != other


def test_a_step_that_has_its_batch_tells_the_watch(monkeypatch):
    monkeypatch.setattr(stop, "_watch", SimpleNamespace(beats=0))
    seeds.seed_step(run_at(0), 0, 0)
    assert stop._watch.beats == 1
