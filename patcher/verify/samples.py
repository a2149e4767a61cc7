"""Images to train on for a few steps: drawn ones, or some of the user's own."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

from patcher.core.problem import UsageError

CLASSES = 10
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def draw(folder: Path, **counts: int) -> None:
    """Write `counts` images of the digits, by part, in ImageNet's layout.

    Each is in another place, size, angle and grey. Pillow comes with torchvision.
    """
    from PIL import Image, ImageDraw

    dice = random.Random(1)
    for part, count in counts.items():
        for number in range(count):
            image = Image.new("L", (16, 16), dice.randrange(60))
            place = dice.randrange(2, 8), dice.randrange(5)
            digit = str(number % CLASSES)
            ImageDraw.Draw(image).text(place, digit, fill=dice.randrange(160, 256))
            image = image.rotate(dice.uniform(-15, 15), Image.Resampling.BICUBIC)
            side = dice.randrange(64, 128)
            image = image.resize((side, side), Image.Resampling.BICUBIC)
            path = folder / part / digit / f"{number:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=90)


def choose(folder: Path, data: Path, **counts: int) -> dict[str, int]:
    """Link up to `counts` of the images in `data`, by part; how many were found of each.

    They come from the first ten classes that have images to validate, too. Raises UsageError if the
    data set has another layout.
    """
    layout = "expected images under DIR/train/CLASS/ and DIR/val/CLASS/"
    try:
        both = [{p.name for p in (data / part).iterdir() if p.is_dir()} for part in counts]
        names = sorted(set.intersection(*both))[:CLASSES]
        found = {}
        for part, count in counts.items():
            by_class = [_images(data / part / name) for name in names]
            rounds = itertools.chain.from_iterable(itertools.zip_longest(*by_class))
            chosen = list(itertools.islice(filter(None, rounds), count))
            for number, path in enumerate(chosen):
                link = folder / part / path.relative_to(data / part).parts[0]
                link.mkdir(parents=True, exist_ok=True)
                (link / f"{number:06}{path.suffix}").symlink_to(path.resolve())
            found[part] = len(chosen)
    except OSError as error:
        where = error.filename or data
        raise UsageError(f"--data: {where}: {error.strerror}; {layout}") from None
    empty = [part for part, count in found.items() if count == 0]
    if empty:
        raise UsageError(f"--data: no images in {data / empty[0]}; {layout}")
    return found


def _images(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(files):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(place, name)
