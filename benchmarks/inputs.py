"""What loading an image costs with the patch `fast_decoding`, against other ways to do it.

    pip install scikit-learn scikit-image simplejpeg nvidia-dali-cuda130 torchcodec
    python benchmarks/inputs.py [--turns 7] [--sizes 500 1400]

Each row is a way to read a file, take upstream's random crop and flip, and give 224 x 224 pixels:
CPU time on one thread, against upstream's pipeline.  All take turns, and a ratio is the median of
the ratios of a turn.  A row says what was checked: the shape and type of what it gives, and by how
much of 255 its pixels differ from upstream's with the same seed, the mean and the worst image.
DALI draws in its own way: there the mean of all pixels has to be upstream's, to 10 of 255.

The photographs are the samples of scikit-learn and scikit-image, cropped to 4:3 and saved at a
quality of 90.  What is not installed has a row that says so.
"""

import argparse
import importlib
import importlib.metadata
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from PIL import Image
from timing import ROOT, compared
from torchvision import transforms
from torchvision.transforms import v2

sys.path.insert(0, str(ROOT))
from patches.support import decode, jpeg, pixels

SIZE = 224
ENDING = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
CROP = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
VALIDATION = [transforms.Resize(256), transforms.CenterCrop(SIZE)]
SIMPLEJPEG = jpeg.simplejpeg
FFCV = "reads a format of its own, and is built with the headers of OpenCV and libturbojpeg"

# A way to load: from paths, one image after another.
Way = Callable[[list[str]], Iterator[torch.Tensor]]


class Absent(Exception):
    """Why something is not measured."""


def photographs(folder: Path, width: int) -> list[str]:
    """The sample photographs, this wide and three quarters as high, as files."""
    try:
        from skimage import data
        from sklearn.datasets import load_sample_images
    except ImportError as error:
        raise SystemExit(f"{error}: pip install scikit-learn scikit-image") from None
    arrays = [*load_sample_images().images, data.astronaut(), data.coffee(), data.chelsea()]
    paths, size = [], (width, width * 3 // 4)
    for number, image in enumerate(map(Image.fromarray, [*arrays, data.rocket()])):
        scale = min(image.width / size[0], image.height / size[1])
        left, top = ((image.size[n] - scale * size[n]) / 2 for n in (0, 1))
        box = (left, top, image.width - left, image.height - top)
        paths.append(str(folder / f"{width}-{number}.jpg"))
        image.resize(size, Image.Resampling.BICUBIC, box).save(paths[-1], quality=90)
    return paths


# Ways to load


def upstream(steps: list) -> Way:
    transform = transforms.Compose([*steps, *ENDING])
    return lambda paths: (transform(decode.read(path)) for path in paths)


def ours(steps: list, simplejpeg) -> Way:
    pipeline = pixels.Pipeline(transforms.Compose([*steps, *ENDING]))

    def load(paths: list[str]) -> Iterator[torch.Tensor]:
        jpeg.simplejpeg = simplejpeg
        return map(pipeline, paths)

    return load


def with_extra(steps: list) -> Way:
    if SIMPLEJPEG is None:
        raise Absent("simplejpeg is not installed")
    return ours(steps, SIMPLEJPEG)


def torchcodec(steps: list) -> Way:
    """Its decoder, and the transforms of torchvision that take tensors."""
    try:
        decoders = importlib.import_module("torchcodec.decoders")
        decoder = decoders.decode_jpeg
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        raise Absent(str(error).splitlines()[0]) from None
    crop, flip = steps
    both = v2.Compose([v2.RandomResizedCrop(crop.size), v2.RandomHorizontalFlip(flip.p)])

    def load(path: str) -> torch.Tensor:
        with open(path, "rb") as file:
            data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        return both(decoder(data, mode="RGB")).permute(1, 2, 0)

    return lambda paths: map(load, paths)


def dali(steps: list) -> Way:
    """Its CPU pipeline, which decodes no more than the crop; all paths at a time are a batch.

    Left as it is, it would work ahead, while the time of another way is taken.
    """
    try:
        from nvidia.dali import fn, pipeline_def, types
    except ImportError as error:
        raise Absent(str(error)) from None
    crop, flip = steps

    at_once = {"prefetch_queue_depth": 1, "exec_pipelined": False, "exec_async": False}

    @pipeline_def(num_threads=1, device_id=None, seed=0, **at_once)
    def pipeline(paths: list[str]):
        files, _ = fn.readers.file(files=paths)
        cropped = fn.decoders.image_random_crop(
            files,
            output_type=types.RGB,
            random_area=list(crop.scale),
            random_aspect_ratio=list(crop.ratio),
        )
        resized = fn.resize(cropped, size=list(crop.size), interp_type=types.INTERP_LINEAR)
        return fn.flip(resized, horizontal=fn.random.coin_flip(probability=flip.p))

    made: dict[tuple, object] = {}

    def load(paths: list[str]) -> Iterator[torch.Tensor]:
        if tuple(paths) not in made:
            made[tuple(paths)] = pipeline(paths, batch_size=len(paths))
        (batch,) = made[tuple(paths)].run()
        return (torch.from_numpy(batch.at(number)) for number in range(len(paths)))

    return load


# Checks and times


def checked(load: Way, paths: list[str], steps: list, draws_alike: bool) -> str:
    """What the pixels of a way are, next to upstream's; SystemExit if they are others."""
    cut, differences, means = transforms.Compose(steps), [], []
    for seed in range(20):
        torch.manual_seed(seed)
        found = [as_bytes(sample) for sample in load(paths)]
        torch.manual_seed(seed)
        expected = [transforms.functional.pil_to_tensor(cut(decode.read(path))) for path in paths]
        for sample, other in zip(found, expected):
            if sample.shape != (SIZE, SIZE, 3) or sample.dtype != torch.uint8:
                raise SystemExit(f"{sample.shape} {sample.dtype}: no image of {SIZE} pixels")
            difference = sample.permute(2, 0, 1).float() - other.float()
            differences.append(difference.abs().mean().item())
            means.append(difference.mean().item())
    (sample,) = load(paths[:1])
    what = f"{tuple(sample.shape)} {str(sample.dtype).removeprefix('torch.')}"
    if not draws_alike:
        mean = statistics.mean(means)
        if abs(mean) > 10:
            raise SystemExit(f"pixels are brighter by {mean:.1f} than upstream's")
        return f"{what}, brighter by {mean:.1f}"
    if statistics.mean(differences) > 4:
        raise SystemExit(f"pixels differ by {statistics.mean(differences):.1f} from upstream's")
    return f"{what}, differs by {statistics.mean(differences):.2f} ({max(differences):.2f})"


def as_bytes(sample: torch.Tensor) -> torch.Tensor:
    """A sample of upstream's, (3, height, width), before it was normalised; others as they are."""
    if sample.dtype == torch.uint8:
        return sample.clone()  # DALI uses its memory again
    mean, std = (torch.tensor(numbers) for numbers in (ENDING[1].mean, ENDING[1].std))
    return ((sample.permute(1, 2, 0) * std + mean) * 255).round().to(torch.uint8)


def spent(load: Way, paths: list[str]) -> float:
    """CPU milliseconds an image, of all threads."""
    since = time.process_time()
    for _sample in load(paths):
        pass
    return (time.process_time() - since) * 1000 / len(paths)


def measure(title: str, paths: list[str], steps: list, ways: dict, turns: int, rounds: int):
    """Print a table."""
    print(f"\n{title}\n")
    ready: dict[str, Way] = {}
    said: dict[str, str] = {}
    for name, make in ways.items():
        try:
            ready[name] = make(steps)
            said[name] = checked(ready[name], paths, steps, name != "DALI")
        except Absent as error:
            said[name] = f"not measured: {error}"
    times: dict[str, list[float]] = {name: [] for name in ready}
    for turn in range(turns + 1):
        names = [*ready]
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            torch.manual_seed(turn)
            cost = spent(ready[name], rounds * paths)
            times[name] += [cost] if turn else []  # the first one warms up
    first, *_ = ways
    for name in ways:
        if name in ready:
            ratio = compared(times[first], times[name])
            print(f"{name:14} {statistics.median(times[name]):6.2f} ms {ratio}  {said[name]}")
        else:
            print(f"{name:14} {said[name]}")


def versions() -> str:
    names = ("torch", "torchvision", "pillow", "simplejpeg", "nvidia-dali-cuda130", "torchcodec")
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time ways to load images, on one thread.")
    add = parser.add_argument
    add("--turns", type=int, default=7, help="turns (default: 7)")
    add(
        "--sizes", type=int, nargs="+", default=[500, 1400], help="widths of photographs, in pixels"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    training = {
        "upstream": upstream,
        "ours": lambda steps: ours(steps, None),
        "ours, extra": with_extra,
        "DALI": dali,
        "torchcodec": torchcodec,
    }
    validation = {name: training[name] for name in ("upstream", "ours", "ours, extra")}
    print(versions())
    print("CPU ms an image, upstream's over it (least and most of a turn), and what was checked")
    with tempfile.TemporaryDirectory() as scratch:
        for size in args.sizes:
            paths, rounds = photographs(Path(scratch), size), max(2, 5000 // size)
            title = f"{len(paths)} photographs, {size} pixels wide: "
            measure(f"{title}training", paths, CROP, training, args.turns, rounds)
            print(f"{'FFCV':14} not measured: {FFCV}")
            measure(f"{title}validation", paths, VALIDATION, validation, args.turns, rounds)


if __name__ == "__main__":
    main()
