"""A small real data set in ImageNet's layout, made without a network.

    python examples/digits.py DIR

writes DIR/train/CLASS/NNNN.jpg and DIR/val/CLASS/NNNN.jpg: the 1,797 scans of handwritten digits
of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998 (https://doi.org/10.24432/C50P49), as scikit-learn's `load_digits` carries them.
NNNN is the scan's place in that data set, from 0.

The split is fixed: of each class every fifth scan, beginning with the first, is for validation.
That makes 1,433 training and 364 validation images.
"""

import argparse
import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

VAL_EVERY = 5
SIZE = 64  # pixels a side; the scans have 8, and 16 grey levels


def plan(limit: int | None = None) -> dict[str, int]:
    """Path below the folder -> index of the scan, at most `limit` of a class in each part."""
    files = {}
    seen = dict.fromkeys(range(10), 0)
    taken: dict[str, int] = {}
    for index, label in enumerate(load_digits().target.tolist()):
        part = "val" if seen[label] % VAL_EVERY == 0 else "train"
        seen[label] += 1
        place = f"{part}/{label}"
        if limit is None or taken.get(place, 0) < limit:
            taken[place] = taken.get(place, 0) + 1
            files[f"{place}/{index:04}.jpg"] = index
    return files


def write(folder: str | Path, limit: int | None = None) -> Path:
    """Write the images below `folder` and return it; one that holds exactly these stays as it is.

    The folder appears complete or not at all.  Raises FileExistsError if it holds anything else.
    """
    folder = Path(folder)
    files = plan(limit)
    if folder.exists() and any(folder.iterdir()):
        there = (path for path in folder.rglob("*") if path.is_file())
        if {path.relative_to(folder).as_posix() for path in there} == set(files):
            return folder
        why = "holds other files than this data set: name an empty or a new folder"
        raise FileExistsError(f"{folder} {why}")
    scans = load_digits().images
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".digits-") as scratch:
        staged = Path(scratch, "digits")
        for name, index in files.items():
            path = staged / name
            path.parent.mkdir(parents=True, exist_ok=True)
            scan = Image.fromarray((scans[index] * (255 / 16)).round().astype("uint8"))
            scan.resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(path, quality=95)
        staged.rename(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Write handwritten digits in ImageNet's layout.")
    folders = "a folder that is new or empty, or holds this data set already"
    parser.add_argument("folder", metavar="DIR", help=folders)
    images = "at most N images of a class in train/ and in val/"
    parser.add_argument("--limit", type=int, metavar="N", help=images)
    args = parser.parse_args()
    try:
        folder = write(args.folder, args.limit)
    except FileExistsError as error:
        parser.error(str(error))
    for part in ("train", "val"):
        print(f"{folder / part}: {sum(1 for _ in (folder / part).glob('*/*.jpg'))} images")


if __name__ == "__main__":
    main()
