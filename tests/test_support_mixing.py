"""`support.mixing`: what is mixed, in which shares, and what of it repeats."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from patches.support import mixing  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def options(mixup=0.0, cutmix=0.0, **more):
    return SimpleNamespace(mixup=mixup, cutmix=cutmix, data="", num_classes=5, **more)


def batch(size, edge=16):
    """Images of one number each, so that a pixel tells whose it is: image n is all n + 1."""
    images = torch.arange(1.0, size + 1).view(-1, 1, 1, 1).expand(size, 3, edge, edge)
    return images.contiguous(), torch.arange(size) % 5


def mixed(size, seed=0, **given):
    torch.manual_seed(seed)
    return mixing.mixed(*batch(size), options(**given))


def one_hot(labels):
    return torch.nn.functional.one_hot(labels, 5).double()


def test_without_the_options_all_stays_what_it_is():
    images, labels = batch(4)
    state = torch.get_rng_state()
    inputs, targets, counted = mixing.mixed(images, labels, options())
    assert inputs is images and targets is labels and counted is labels
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_blended_images_have_labels_in_the_shares_of_their_pixels(size, seed):
    inputs, targets, _ = mixed(size, seed, mixup=1.0)
    images, labels = batch(size)
    before = torch.arange(size).roll(1)
    own, other = images[:, 0, 0, 0].double(), images[before, 0, 0, 0].double()
    share = ((inputs[:, 0, 0, 0].double() - other) / (own - other)).unsqueeze(1)
    torch.testing.assert_close(share, share[:1].expand_as(share), rtol=0, atol=1e-5)
    wanted = share * one_hot(labels) + (1 - share) * one_hot(labels[before])
    torch.testing.assert_close(targets.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_pasted_images_have_labels_in_the_shares_of_their_pixels(size, seed):
    inputs, targets, _ = mixed(size, seed, cutmix=1.0)
    images, labels = batch(size)
    before = torch.arange(size).roll(1)
    own = (inputs == images).flatten(1).double()
    pasted = (inputs == images[before]).flatten(1).double()
    torch.testing.assert_close(own + pasted, torch.ones_like(own))
    share = own.mean(1, keepdim=True)
    wanted = share * one_hot(labels) + (1 - share) * one_hot(labels[before])
    torch.testing.assert_close(targets.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("given", [{"mixup": 0.2}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0}])
def test_shares_are_one_in_all_and_the_largest_one_is_counted(given):
    for seed in range(20):
        inputs, targets, labels = mixed(5, seed, **given)
        assert inputs.dtype == targets.dtype == torch.float32 and inputs.shape == (5, 3, 16, 16)
        assert bool((targets >= 0).all())
        torch.testing.assert_close(
            targets.double().sum(1), torch.ones(5).double(), rtol=0, atol=1e-6
        )
        assert torch.equal(targets.gather(1, labels.unsqueeze(1)).squeeze(1), targets.amax(1))


def test_both_are_drawn_and_a_batch_has_one_of_them():
    kinds = set()
    for seed in range(20):
        inputs, _, _ = mixed(4, seed, mixup=1.0, cutmix=1.0)
        kinds.add(all(len(image.unique()) == 1 for image in inputs))
    assert kinds == {True, False}


def test_a_single_image_stays_what_it_is():
    for given in ({"mixup": 1.0}, {"cutmix": 1.0}):
        inputs, targets, labels = mixed(1, **given)
        torch.testing.assert_close(inputs, batch(1)[0])
        torch.testing.assert_close(targets, torch.tensor([[1.0, 0, 0, 0, 0]]))
        assert labels.tolist() == [0]


def test_what_is_drawn_follows_from_the_seed_of_the_step():
    """Whatever a transform has drawn before: it holds no state."""
    first = mixed(4, 7, mixup=0.2, cutmix=1.0)
    mixed(6, 8, mixup=0.2, cutmix=1.0)
    again = mixed(4, 7, mixup=0.2, cutmix=1.0)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], mixed(4, 9, mixup=0.2, cutmix=1.0)[0])


def test_the_batch_of_the_caller_and_its_layout_stay(monkeypatch):
    images, labels = batch(4)
    images = images.contiguous(memory_format=torch.channels_last)
    kept = images.clone()
    for given in ({"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 1.0, "repeats": 3}):
        torch.manual_seed(1)
        inputs, _, _ = mixing.mixed(images, labels, options(**given))
        assert torch.equal(images, kept)
        assert inputs.is_contiguous(memory_format=torch.channels_last)


def test_copies_of_an_image_are_mixed_with_others(monkeypatch):
    """With fewer ranks than --repeats, they are neighbours in a batch."""
    images, labels = torch.ones(12, 3, 2, 2), torch.tensor([0] * 4 + [1] * 4 + [2] * 4)

    def pairs(world, repeats=4):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        torch.manual_seed(0)
        args = options(mixup=1.0, repeats=repeats)
        return int((mixing.mixed(images, labels, args)[1] > 0).sum(1).gt(1).sum())

    assert pairs(4) == pairs(8) == pairs(1, repeats=1) == 3  # as they come
    assert pairs(1) == pairs(3) > 3
