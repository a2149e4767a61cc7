"""`support.pixels`: images as bytes are those that upstream's transforms would have made."""

import argparse
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
import numpy as np  # noqa: E402
from photos import DECODERS, encoded, photo, use  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision import datasets, transforms  # noqa: E402

from patches.support import decode, jpeg, pixels, seeds  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ENDING = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
BEGINS = {
    "train": [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()],
    "val": [transforms.Resize(256), transforms.CenterCrop(224)],
}
SIZES = [(100, 75), (224, 300), (500, 375), (1400, 1050), (900, 2300)]


def upstreams(name: str, ending=ENDING):
    return transforms.Compose([*BEGINS[name], *ending])


def upstream(name: str, path) -> np.ndarray:
    """The pixels of a file as `standard` has them before they become floats."""
    image = decode.load_image(str(path))
    return np.array(transforms.Compose(BEGINS[name])(image)).astype(int)


def of_seed(seed: int, function, *args) -> tuple:
    """What a function gives, and the state in which it leaves the generator."""
    torch.manual_seed(seed)
    return function(*args), torch.get_rng_state()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One process, a generator that no other test sees, and no colours from another one."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["dir/distributed.py"])
    monkeypatch.setattr(pixels, "_colours", (MEAN, STD))
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two classes with some photographs, as folders train/ and val/."""
    monkeypatch.chdir(tmp_path)
    for part in BEGINS:
        for number, name in enumerate(("a", "b")):
            (tmp_path / part / name).mkdir(parents=True)
            for width, height in SIZES[:3]:
                path = tmp_path / part / name / f"{width}.jpg"
                path.write_bytes(encoded(photo(number, width, height)))
    return tmp_path


def loaders(data: Path, skip: int = 0, **transform) -> list:
    """Stand-ins for the script's two loaders: the first with a data set as SeededImages has it."""
    train, val = (
        datasets.ImageFolder(
            data / name, transform.get(name, upstreams(name)), loader=decode.skipping(skip)
        )
        for name in BEGINS
    )
    return [SimpleNamespace(dataset=seeds.SeededImages(train)), SimpleNamespace(dataset=val)]


def arguments(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    pixels.add_options(parser)
    return parser.parse_args(argv)


# Pixels


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("size", SIZES)
def test_training_has_upstreams_crop_and_flip_of_each_seed(tmp_path, monkeypatch, decoder, size):
    """Where all of the file is decoded, pixels differ by a rounding.

    Elsewhere by 5 of 255, and with simplejpeg by half a pixel of the result.
    """
    use(decoder, monkeypatch)
    path = tmp_path / "1.jpg"
    pipeline = pixels.Pipeline(upstreams("train"))
    for seed in range(6 if size == (1400, 1050) else 4):
        path.write_bytes(encoded(photo(seed % 2, *size)))
        found, state = of_seed(seed, pipeline, str(path))
        expected, left = of_seed(seed, upstream, "train", path)
        assert torch.equal(state, left)
        assert found.dtype == torch.uint8 and found.shape == (224, 224, 3)
        difference = np.abs(found.numpy() - expected)
        if max(size) <= 500:
            assert difference.max() <= 1 and difference.mean() < 0.2
        else:
            assert difference.mean() < (5 if decoder == "torchvision" else 12)
        turned = np.abs(found.numpy() - expected[:, ::-1]).mean()
        assert turned > 2 * difference.mean() + 5


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_flips_are_as_likely_as_the_transform_says(tmp_path, p):
    path = tmp_path / "1.jpg"
    path.write_bytes(encoded(photo(0, 300, 224)))
    steps = [transforms.RandomResizedCrop(64, (1, 1)), transforms.RandomHorizontalFlip(p)]
    pipeline = pixels.Pipeline(transforms.Compose([*steps, *ENDING]))
    never = transforms.Compose([steps[0], transforms.RandomHorizontalFlip(0), *ENDING])
    for seed in range(5):
        found, other = (
            of_seed(seed, one, str(path))[0] for one in (pipeline, pixels.Pipeline(never))
        )
        assert torch.equal(found, other.flip(1) if p else other)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size", [*SIZES, (256, 256), (1030, 1024), (1100, 1024), (4200, 3100)])
def test_validation_is_within_its_distance_of_upstream(
    tmp_path, monkeypatch, decoder, number, size
):
    """The mean over the pixels is 1.5 of 255 at most, for each photograph; here 1."""
    use(decoder, monkeypatch)
    path = tmp_path / "1.jpg"
    path.write_bytes(encoded(photo(number, *size)))
    expected = upstream("val", path)
    found = pixels.Pipeline(upstreams("val"))(str(path))
    difference = np.abs(found.numpy() - expected)
    assert difference.mean() <= (0.2 if min(size) < 1024 else 1)
    assert (difference.max() > 1) == (min(size) >= 1024)  # is it decoded at a scale?


@pytest.mark.parametrize(
    "resize, second",
    [
        (transforms.Resize((100, 60)), transforms.CenterCrop((90, 50))),
        (transforms.Resize([64]), transforms.CenterCrop(64)),
        (transforms.Resize(64), transforms.CenterCrop(80)),  # upstream pads
        (transforms.Resize(70, interpolation=transforms.InterpolationMode.BICUBIC),) * 2,
    ],
)
def test_validation_follows_the_numbers_of_the_transform(tmp_path, monkeypatch, resize, second):
    second = transforms.CenterCrop(65) if second is resize else second
    monkeypatch.setitem(BEGINS, "val", [resize, second])
    path = tmp_path / "1.jpg"
    for size in ((131, 97), (97, 131)):
        path.write_bytes(encoded(photo(0, *size)))
        found = pixels.Pipeline(upstreams("val"))(str(path)).numpy()
        expected = upstream("val", path)
        assert found.shape == expected.shape
        assert np.abs(found - expected).mean() < 0.4


def test_size_of_a_resized_image_is_torchvisions():
    for height in range(40, 700, 23):
        for width in range(40, 700, 29):
            image = Image.new("L", (width, height))
            for size in (64, [100], (30, 70)):
                made = transforms.Resize(size)(image)
                assert pixels.size_after(size, height, width) == (made.height, made.width)


# Files of all kinds


def kinds() -> dict:
    image = photo(0, 300, 240)
    whole, turned = encoded(image), Image.Exif()
    turned[0x0112] = 6
    middle = len(whole) // 2
    return {
        "JPEG": whole,
        "grey JPEG": encoded(image.convert("L")),
        "progressive JPEG": encoded(image, progressive=True),
        "CMYK JPEG": encoded(image.convert("CMYK")),
        "RGB JPEG": encoded(image, keep_rgb=True),
        "JPEG that is turned": encoded(image, exif=turned),
        "JPEG that lacks its middle": whole[:middle] + whole[middle + 300 :],
        "JPEG with bytes below it": whole + 200 * b"\0",
        "PNG": encoded(image, "PNG"),
        "PNG of a palette": encoded(image.convert("P"), "PNG"),
        "PNG with alpha": encoded(image.convert("RGBA"), "PNG"),
        "grey PNG with alpha": encoded(image.convert("LA"), "PNG"),
        "PNG of 16 bits": encoded(image.convert("I;16"), "PNG"),
        "WebP": encoded(image, "WEBP", lossless=True),
        "BMP": encoded(image, "BMP"),
        "TIFF": encoded(image, "TIFF"),
        "TIFF of fractions": encoded(image.convert("F"), "TIFF"),
        "truncated JPEG": whole[:middle],
        "JPEG without an end": whole[:-2],
        "truncated PNG": encoded(image, "PNG")[:middle],
        "header of a JPEG": whole[:660] + b"\xff\xd9",
        "JPEG without tables": without_tables(whole),
        "empty": b"",
        "text": b"no image" * 100,
    }


def without_tables(data: bytes) -> bytes:
    """A JPEG whose header is fine, and whose Huffman tables are not."""
    at = data.index(b"\xff\xc4") + 5
    return data[:at] + 16 * b"\xff" + data[at + 16 :]


def outcome(load) -> tuple:
    """The sample, or the error and its message; then the state of the generator."""
    torch.manual_seed(7)
    try:
        found = np.asarray(load()).astype(int)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return found, torch.get_rng_state()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", BEGINS)
@pytest.mark.parametrize("kind", kinds())
def test_file_of_any_kind_is_what_it_is_in_standard(tmp_path, monkeypatch, decoder, name, kind):
    """The same pixels, or the same error, whatever the file is called; the same draws."""
    use(decoder, monkeypatch)
    path = tmp_path / "1.JPEG"
    path.write_bytes(kinds()[kind])
    pipeline = pixels.Pipeline(upstreams(name))
    found, state = outcome(lambda: decode.load_image(str(path), read=pipeline))
    expected, left = outcome(lambda: upstream(name, path))
    assert torch.equal(state, left)
    if kind == "JPEG without tables":
        assert jpeg.header(path.read_bytes())  # it fails after the crop has been drawn
    if isinstance(expected, str):
        assert found == expected
        assert found.startswith(f"RuntimeError: cannot decode {path}: ")
    else:
        assert np.abs(found - expected).mean() < 0.2


def test_both_outcomes_are_among_the_kinds(tmp_path):
    path, ends = tmp_path / "1.JPEG", {}
    for kind, content in kinds().items():
        path.write_bytes(content)
        ends[kind] = isinstance(outcome(lambda: upstream("val", path))[0], str)
    assert sum(ends.values()) == 7 and len(ends) > 20, ends
    assert sum(jpeg.header(content) is not None for content in kinds().values()) >= 5


def test_pillow_decides_if_the_fast_decoder_fails(tmp_path, monkeypatch):
    """As if the crop had not been drawn: the sample is upstream's."""

    def fails(*args, **kwargs):
        calls.append(torch.get_rng_state())
        raise RuntimeError("some error of a library")

    path, calls = tmp_path / "1.jpg", []
    path.write_bytes(encoded(photo(0, 1400, 1050)))
    use("torchvision", monkeypatch)
    monkeypatch.setattr(jpeg, "by_pillow", fails)
    monkeypatch.setattr(torch.ops.image, "decode_jpeg", fails)
    for name in BEGINS:
        pipeline = pixels.Pipeline(upstreams(name))
        found, state = of_seed(3, pipeline, str(path))
        expected, left = of_seed(3, upstream, name, path)
        assert torch.equal(state, left)
        assert np.abs(found.numpy() - expected).max() <= 1
    assert len(calls) == 2


@pytest.mark.parametrize("fast", [True, False])
def test_bad_images_are_skipped_listed_and_counted_as_in_standard(data, capsys, fast):
    """Also the sample that takes the place of a bad one is that of `standard`."""
    bad = data / "train" / "a" / "224.jpg"
    whole = bad.read_bytes()
    for content in (b"no image", whole[:3000], without_tables(whole)):
        bad.write_bytes(content)
        listed = {}
        for way in ("standard", "fast"):
            Path(decode.LIST).unlink(missing_ok=True)
            training, validation = loaders(data, skip=1)
            if way == "fast":
                pixels.faster(training, validation, arguments())
            capsys.readouterr()
            index = [path for path, _ in training.dataset.images.samples].index(str(bad))
            (sample, label), (again, _) = (training.dataset[index, (5, 0)] for _ in range(2))
            assert torch.equal(sample, again)
            listed[way] = Path(decode.LIST).read_text(), capsys.readouterr(), label
            if way == "standard":
                expected = sample
        assert listed["fast"] == listed["standard"]
        assert listed["fast"][0].count("\n") == 1
        made = pixels.normalized(sample[None])[0]
        assert (made - expected).abs().mean() < 0.01
    (data / "train" / "b" / "100.jpg").write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"^more than 1 images cannot be decoded"):
        training.dataset[3, (5, 0)]


# Normalising


def test_batch_of_bytes_is_normalised_as_upstream_does_it(data):
    steps = transforms.Compose(ENDING)
    values = torch.arange(256, dtype=torch.uint8).repeat(3 * 3)[: 2 * 3 * 384].view(2, 24, 16, 3)
    assert values.unique().numel() == 256
    expected = torch.stack([steps(image.numpy()) for image in values])
    made = pixels.normalized(values)
    assert made.dtype == torch.float32 and made.shape == (2, 3, 24, 16)
    assert (made - expected).abs().max() < 1e-6
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_every_value_of_every_colour_is_normalised_to_a_millionth():
    values = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 3)[None]
    expected = transforms.Compose(ENDING)(values[0][:, None].numpy())[:, :, 0]
    assert (pixels.normalized(values[None])[0, :, 0] - expected).abs().max() < 1e-6


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.int64])
def test_any_other_batch_is_passed_on(kind):
    batch = torch.ones(2, 3, 4, 4).to(kind)
    assert pixels.normalized(batch) is batch


def test_colours_are_those_of_the_scripts_transform(data, monkeypatch):
    last = transforms.Normalize((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))
    own = {name: upstreams(name, [transforms.ToTensor(), last]) for name in BEGINS}
    pixels.faster(*loaders(data, **own), arguments())
    found = pixels.normalized(torch.full((1, 2, 2, 3), 255, dtype=torch.uint8))
    torch.testing.assert_close(found[0, :, 1, 0], torch.tensor([0.9, 0.4, 0.175]))


# Both data sets


@pytest.mark.parametrize("decoder", DECODERS)
def test_samples_become_bytes_with_the_same_labels(data, monkeypatch, decoder, capsys):
    use(decoder, monkeypatch)
    plain, fast = loaders(data), loaders(data)
    pixels.faster(*fast, arguments())
    said = capsys.readouterr().out
    assert said == (
        "images are decoded by simplejpeg\n"
        if decoder != "torchvision"
        else "images are decoded by torchvision; simplejpeg is faster: pip install simplejpeg\n"
    )
    for index in range(6):
        for keys, one, other in zip(((index, (9, 2)), index), plain, fast):
            (expected, label), (found, same) = one.dataset[keys], other.dataset[keys]
            assert label == same and found.dtype == torch.uint8 and found.is_contiguous()
            difference = (pixels.normalized(found[None])[0] - expected).abs()
            assert difference.max() < 2 / 255 / min(STD) and difference.mean() < 0.01


def test_other_ranks_say_nothing(data, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    pixels.faster(*loaders(data), arguments())
    assert capsys.readouterr().out == ""


def test_exact_transforms_changes_no_bit(data):
    plain, exact = loaders(data), loaders(data)
    before = [dict(vars(exact[1].dataset)), dict(vars(exact[0].dataset.images))]
    pixels.faster(*exact, arguments("--exact-transforms"))
    assert before == [vars(exact[1].dataset), vars(exact[0].dataset.images)]
    for index in range(6):
        for keys, one, other in zip(((index, (9, 2)), index), plain, exact):
            (expected, label), (found, same) = one.dataset[keys], other.dataset[keys]
            assert label == same and torch.equal(pixels.normalized(found[None])[0], expected)


class Feed(SimpleNamespace):
    """As much of a run as SamplesLeft reads."""

    def first_step(self, length, batch_size):
        return self.first


@pytest.mark.parametrize("workers", [0, 2])
def test_sample_is_the_same_whoever_loads_it_and_after_a_resume(data, workers):
    """Bit for bit: with other workers, and in a run that begins at the second batch."""

    def batches(first, workers):
        training, validation = loaders(data)
        pixels.faster(training, validation, arguments())
        run = Feed(seed=5, epoch=3, first=first, args=SimpleNamespace(batch_size=2))
        images = training.dataset.images
        loader = torch.utils.data.DataLoader(
            seeds.SeededImages(images),
            sampler=seeds.shuffled(images, run),
            batch_size=2,
            num_workers=workers,
        )
        return list(loader)

    whole, resumed = batches(0, 0), batches(1, workers)
    assert len(whole) == 3 and len(resumed) == 2
    for one, other in zip(whole[1:], resumed):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        assert one[0].shape == (2, 224, 224, 3)


def test_data_sets_can_be_sent_to_new_processes(data):
    """Where workers are not forked, they get a copy."""
    training, validation = loaders(data)
    pixels.faster(training, validation, arguments())
    for one, key in ((training.dataset, (1, (5, 0))), (validation.dataset, 1)):
        assert torch.equal(pickle.loads(pickle.dumps(one))[key][0], one[key][0])


class Cutout(torch.nn.Module):
    pass


RESIZE, CROP = BEGINS["val"]
NEAREST = transforms.InterpolationMode.NEAREST


@pytest.mark.parametrize(
    "steps, found",
    [
        ([*BEGINS["train"], *ENDING, Cutout()], "expected no more, found Cutout"),
        ([*BEGINS["train"], Cutout(), *ENDING], "expected ToTensor, found Cutout"),
        ([Cutout(), *BEGINS["train"], *ENDING], "expected Resize, found Cutout"),
        ([*BEGINS["train"], ENDING[0]], "expected Normalize, found no more"),
        ([BEGINS["train"][0], *ENDING], "expected RandomHorizontalFlip, found ToTensor"),
        ([], "expected Resize, found no more"),
        ([transforms.Resize(256, NEAREST), CROP, *ENDING], "is not known"),
        ([transforms.Resize(256, max_size=300), CROP, *ENDING], "is not known"),
        ([RESIZE, CROP, ENDING[0], transforms.Normalize(STD, STD)], "other numbers than training"),
    ],
)
def test_transform_that_is_not_known_ends_the_run(data, capsys, steps, found):
    training, validation = loaders(data, val=transforms.Compose(steps))
    with pytest.raises(SystemExit) as ended:
        pixels.faster(training, validation, arguments())
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("distributed.py: error: ") and found in line
    assert "; with --exact-transforms all " in line
    pixels.faster(training, validation, arguments("--exact-transforms"))


def test_step_of_the_same_name_is_not_the_same(data, capsys):
    class Resize(transforms.Resize):
        pass

    steps = transforms.Compose([Resize(256), CROP, *ENDING])
    with pytest.raises(SystemExit):
        pixels.faster(*loaders(data, val=steps), arguments())
    assert "expected Resize, found" in capsys.readouterr().err


@pytest.mark.parametrize("loader", [datasets.folder.default_loader, None])
def test_loader_that_is_not_known_ends_the_run(data, capsys, loader):
    training, validation = loaders(data)
    validation.dataset.loader = loader
    with pytest.raises(SystemExit):
        pixels.faster(training, validation, arguments())
    assert "a data set has a loader of its own" in capsys.readouterr().err


def test_data_set_without_transform_ends_the_run(data, capsys):
    training, _ = loaders(data)
    other = SimpleNamespace(dataset=torch.utils.data.TensorDataset(torch.ones(3)))
    with pytest.raises(SystemExit):
        pixels.faster(training, other, arguments())
    assert "expected Resize, found NoneType" in capsys.readouterr().err
