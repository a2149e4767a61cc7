"""The guide's recipe against `--recipe vit`: accuracy of a small ViT, with the same images.

    pip install scikit-learn scikit-image matplotlib
    python benchmarks/recipe.py [--data digits photos] [--epochs 60] [--seeds 3] [--plot FILE.png]

Both train `small_vit` of examples/small_vit.py with `distributed.py` of the series `vit`, at 24
pixels, in the same number of epochs and steps.  "guide" has no other option: SGD at the guide's
0.001, divided by ten every 30 epochs, weight decay 0.0001, crops and flips.  "guide, 0.1" has the
rate that is upstream's default, lest the rate alone decide.  "vit" has `--recipe vit`; what is
smaller here than ImageNet is given by options, see OPTIONS.

The data are the digits, and crops of 64 pixels of sample photographs: which of six photographs is a
crop from?  Those of validation come from another part of it.

Checked: every run validates each image once an epoch, and ends with a finite loss.
"""

import argparse
import itertools
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timing import PYTHON, ROOT, apply

sys.path.insert(0, str(ROOT / "examples"))
import digits

SIZE, BATCH = 24, 64
COMMON = ["--arch", "small_vit", "--image-size", SIZE, "--batch-size", BATCH, "--device", "cpu"]
COMMON += ["-j", 1, "-p", 1000, "--amp", "off"]
# 0.003 is for 4,096 images a step, and would be 0.00005 for 64; a net of 0.3 million weights takes
# more.  It does not learn its 1,400 images by heart in 60 epochs, so what is against that is off:
# with mixup, cutmix, RandAugment and repeats it ended at 68 %, and was still learning.
SMALL = ["--mixup", 0, "--cutmix", 0, "--augment", "off", "--repeats", 1]
OPTIONS = {
    "guide": ["--lr", 0.001],
    "guide, 0.1": ["--lr", 0.1],
    "vit": ["--recipe", "vit", "--lr", 0.001, "--warmup", 5, *SMALL],
}
RESULT = re.compile(r" \* Acc@1 ([\d.]+)")
AGAIN = "once more, with the averaged weights:\n"


def photographs(folder: Path) -> Path:
    """Crops of the sample photographs in ImageNet's layout; one photograph is one class."""
    from inputs import photographs
    from PIL import Image

    dice = random.Random(0)
    for number, path in enumerate(photographs(folder, 500)):
        photo = Image.open(path)
        for part, count in (("train", 240), ("val", 60)):
            first, last = (0, 300) if part == "train" else (300, 500 - 64)
            (folder / "crops" / part / str(number)).mkdir(parents=True)
            for crop in range(count):
                left, top = dice.randint(first, last - 64 * (part == "train")), dice.randint(0, 311)
                box = (left, top, left + 64, top + 64)
                photo.crop(box).save(
                    folder / "crops" / part / str(number) / f"{crop}.jpg", quality=90
                )
    return folder / "crops"


def run(build: Path, data: Path, name: str, seed: int, epochs: int) -> list[float]:
    """The accuracy after each epoch: that of the averaged weights, once there are some."""
    out = build.parent / f"{data.name} {name} {seed}"
    command = [PYTHON, ROOT / "examples/small_vit.py", build / "distributed.py", *COMMON]
    command += [
        "--data",
        data,
        "--epochs",
        epochs,
        "--seed",
        seed,
        "--output-dir",
        out,
        *OPTIONS[name],
    ]
    done = subprocess.run(
        [*map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: list[float] = []
    for before, line in itertools.pairwise(done.stdout.splitlines(keepends=True)):
        if result := RESULT.match(line):
            found.append(float(result[1]))
        if before == AGAIN:
            del found[-1]  # the next one is of the same epoch
    assert len(found) == epochs, (name, len(found))
    return found


def plot(curves: dict, path: Path) -> None:
    """The curves of each data set, one line a run."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(9, 3.6), sharey=True, squeeze=False)
    for axis, (data, runs) in zip(axes[0], curves.items()):
        for colour, (name, lines) in enumerate(runs.items()):
            for number, line in enumerate(lines):
                label = None if number else name
                axis.plot(range(1, len(line) + 1), line, f"C{colour}", label=label, alpha=0.7)
        axis.set(title=data, xlabel="epoch")
        axis.grid(alpha=0.3)
    axes[0][0].set(ylabel="validation Acc@1, %")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the guide's recipe with --recipe vit.")
    add = parser.add_argument
    add("--data", nargs="+", choices=["digits", "photos"], default=["digits", "photos"])
    add("--epochs", type=int, default=60, help="epochs of each run (default: 60)")
    add("--seeds", type=int, default=3, help="seeds of each recipe (default: 3)")
    add("--only", nargs="+", choices=OPTIONS, default=[*OPTIONS], help="recipes (default: all)")
    add("--plot", type=Path, metavar="FILE", help="write the curves there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        apply(folder / "build", "vit")
        sets = {}
        if "digits" in args.data:
            sets["digits"] = digits.write(folder / "digits")
        if "photos" in args.data:
            sets["photos"] = photographs(folder)
        curves: dict[str, dict[str, list[list[float]]]] = {name: {} for name in sets}
        with ThreadPoolExecutor(2) as pool:  # each run has a core
            tasks = {
                (data, name): [
                    pool.submit(run, folder / "build", sets[data], name, seed, args.epochs)
                    for seed in range(args.seeds)
                ]
                for data in sets
                for name in args.only
            }
            for (data, name), started in tasks.items():
                found = curves[data][name] = [task.result() for task in started]
                last = [line[-1] for line in found]
                spread = f"{min(last):.1f} to {max(last):.1f}"
                mean, said = statistics.mean(last), " ".join(map(str, OPTIONS[name]))
                print(f"{data}: {name:10} Acc@1 {mean:.1f} % ({spread}); {said}", flush=True)
        if args.plot:
            plot(curves, args.plot)


if __name__ == "__main__":
    main()
