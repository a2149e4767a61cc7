"""`support.augmentation`, and what `support.pixels` makes of it: torchvision's own, in bytes."""

import argparse
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
from conftest import ending  # noqa: E402
from photos import photo  # noqa: E402
from torchvision import transforms  # noqa: E402

from patches.support import augmentation, decode, pixels  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COLOUR = torch.tensor([124, 116, 104])  # 255 * MEAN is 123.675, 116.28 and 103.53
# Of a square file this is the whole image, so both ways have the very same pixels.
BEGIN = [transforms.RandomResizedCrop(96, (1, 1), (1, 1)), transforms.RandomHorizontalFlip()]
ENDING = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["dir/distributed.py"])
    monkeypatch.setattr(pixels, "_colours", (MEAN, STD))
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.fixture
def path(tmp_path):
    photo(0, 96, 96).save(tmp_path / "1.png")
    return str(tmp_path / "1.png")


def options(*argv: str, **changes) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    augmentation.add_options(parser)
    return parser.parse_args(argv, argparse.Namespace(**changes))


def composed(args) -> transforms.Compose:
    """As the script has it."""
    of_image, of_tensor = augmentation.of_image(args), augmentation.of_tensor(args)
    return transforms.Compose([*BEGIN, *of_image, *ENDING, *of_tensor])


def of_seed(seed: int, function, *args) -> tuple:
    torch.manual_seed(seed)
    return function(*args), torch.get_rng_state()


def test_by_default_there_is_none():
    args = options()
    assert augmentation.of_image(args) == augmentation.of_tensor(args) == []


@pytest.mark.parametrize(
    "argv, kind", [("ra", transforms.RandAugment), ("ta", transforms.TrivialAugmentWide)]
)
@pytest.mark.parametrize("mode", [None, "bilinear", "bicubic"])
def test_augmentation_is_interpolated_as_the_images_are(argv, kind, mode):
    """torchvision's recipes do so; its own default takes the nearest pixel."""
    (found,) = augmentation.of_image(options("--augment", argv, interpolation=mode))
    assert type(found) is kind
    assert found.interpolation is transforms.InterpolationMode(mode or "bilinear")


def test_magnitude_and_probability_are_those_that_are_given():
    args = options("--augment", "ra", "--ra-magnitude", "14", "--random-erase", "0.1")
    assert augmentation.of_image(args)[0].magnitude == 14
    (erase,) = augmentation.of_tensor(args)
    assert (erase.p, erase.value, erase.scale) == (0.1, 0, (0.02, 0.33))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("kind", ["ra", "ta"])
def test_bytes_are_those_that_torchvision_makes_of_the_same_seed(path, kind, mode):
    """Also the state of the generator, for what is drawn next; over nearly all kinds of change."""
    whole = composed(options("--augment", kind, interpolation=mode))
    read = pickle.loads(pickle.dumps(pixels.Pipeline(whole)))  # as another process gets it
    seen = set()
    for seed in range(60):
        found, state = of_seed(seed, read, path)
        exact = transforms.Compose(whole.transforms[:3])
        expected, left = of_seed(seed, lambda exact=exact: exact(decode.read(path)))
        assert torch.equal(found, transforms.functional.pil_to_tensor(expected).permute(1, 2, 0))
        assert found.dtype == torch.uint8 and found.is_contiguous()
        assert torch.equal(state, left)
        seen.add(found.numpy().tobytes())
    assert len(seen) > 40


def test_erased_part_is_the_mean_colour_and_where_torchvision_has_it(path):
    """So after normalisation it is 0 but for the rounding: 0.0082 is the largest, in blue."""
    whole = composed(options("--random-erase", "0.7"))
    read, erased = pixels.Pipeline(whole), 0
    for seed in range(40):
        found, state = of_seed(seed, read, path)
        expected, left = of_seed(seed, lambda: whole(decode.read(path)))
        assert torch.equal(state, left)
        hidden = (expected == 0).all(0)
        assert (found[hidden] == COLOUR).all()
        made = pixels.normalized(found[None])[0]
        torch.testing.assert_close(made[:, ~hidden], expected[:, ~hidden], atol=2e-6, rtol=1e-6)
        largest = float(made[:, hidden].abs().max()) if hidden.any() else 0
        assert largest < 0.0083
        erased += bool(hidden.any())
    assert 20 <= erased <= 36  # of 40 with 0.7: 28 and three standard deviations


def test_augmentation_and_erasing_come_in_this_order(path):
    args = options("--augment", "ra", "--random-erase", "1")
    whole, only = composed(args), composed(options("--augment", "ra"))
    for seed in range(10):
        found, _ = of_seed(seed, pixels.Pipeline(whole), path)
        plain, _ = of_seed(seed, pixels.Pipeline(only), path)
        expected, _ = of_seed(seed, lambda: whole(decode.read(path)))
        hidden = (expected == 0).all(0)
        assert hidden.any() and (found[hidden] == COLOUR).all()
        assert torch.equal(found[~hidden], plain[~hidden])


ERASE, AUGMENT = transforms.RandomErasing(), transforms.RandAugment()
FITTED = [transforms.Resize(96), transforms.CenterCrop(96), *ENDING]


@pytest.mark.parametrize(
    "steps, words",
    [
        ([*BEGIN, *ENDING, transforms.RandomErasing(value="random")], "is not known, but for val"),
        ([*BEGIN, *ENDING, transforms.RandomErasing(value=(1, 2, 3))], "is not known, but for val"),
        ([*BEGIN, *ENDING, AUGMENT], "expected no more, found RandAugment"),
        ([*BEGIN, ERASE, *ENDING], "expected ToTensor, found RandomErasing"),
        ([BEGIN[0], AUGMENT, BEGIN[1], *ENDING], "expected RandomHorizontalFlip, found RandAugm"),
        ([*BEGIN, AUGMENT, AUGMENT, *ENDING], "expected ToTensor, found RandAugment"),
        ([*BEGIN, transforms.AugMix(), *ENDING], "expected ToTensor, found AugMix"),
        ([*FITTED, ERASE], "expected no more, found RandomErasing"),
        ([*FITTED[:2], AUGMENT, *ENDING], "expected ToTensor, found RandAugment"),
    ],
)
def test_other_steps_are_refused(steps, words, capsys):
    line = ending(capsys, pixels.Pipeline, transforms.Compose(steps))
    assert words in line and "with --exact-transforms all is done as upstream does it" in line
