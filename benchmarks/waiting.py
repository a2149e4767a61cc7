"""How long training waits for data: `fast` against `standard`, with a device that computes fast.

    pip install scikit-learn scikit-image
    python benchmarks/waiting.py [--turns 3]

`dataparallel.py` of each series trains on photographs of 500 x 375.  Its model is a stand-in for a
GPU: it sleeps for as long as that would compute, so that both cores load.  "guide" is the time of
the vendor's guide, 0.6 s for 2,048 images, with its two loading processes: no pipeline on two cores
can keep up, so the images per second are compared with those of a device that takes no time at all.
"fits" leaves the cores time enough: there, waiting ought to vanish.  `standard` loads as upstream
does, by Pillow and in float32, and stands in for it, since upstream needs a GPU.

Checked in each run: the number of images, and that the loss is finite.
"""

import argparse
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

from inputs import photographs
from timing import PYTHON, apply, compared

BATCH, STEPS, SKIPPED = 64, 40, 10
DEVICES = {"no time": 0.0, "guide": 0.6 / 2048, "fits": 1 / 800}  # seconds an image
LINE = re.compile(r"Epoch: \[0\]\[ *(\d+)/\d+\]\tTime +([\d.]+) .*Data +([\d.]+) .*Loss (\S+)")
MODEL = """
import runpy, sys, time
import torch
from torchvision import models
from torchvision.models._api import register_model

class Sleeper(torch.nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = torch.nn.Linear(3, outputs)

    def forward(self, images):
        time.sleep({seconds} * len(images))
        return self.last(images[:, :, 0, 0].float())

def sleeper(*, weights=None, num_classes=1000, **kwargs):
    return Sleeper(num_classes)

sleeper.__module__ = "torchvision.models.sleeper"
models.sleeper = register_model()(sleeper)
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def data(folder: Path) -> Path:
    """Two classes of photographs, the same few under many names."""
    found = photographs(folder, 500)
    for split, count in (("train", BATCH * STEPS), ("val", 2)):
        for number in range(count):
            path = folder / "data" / split / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(found[number % len(found)])
    return folder / "data"


def run(build: Path, images: Path, seconds: float, folder: Path) -> tuple[float, float]:
    """Images per second, and the share of the time that was spent waiting for data."""
    driver = folder / "driver.py"
    driver.write_text(MODEL.format(seconds=seconds))
    command = [PYTHON, driver, build / "dataparallel.py", "--arch", "sleeper", "--data", images]
    command += ["--device", "cpu", "-b", BATCH, "-j", 2, "--epochs", 1, "-p", 1, "--lr", 0]
    command += ["--output-dir", folder / "out", "--overwrite", "--seed", 0]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    steps = [list(map(float, found)) for found in LINE.findall(done.stdout)]
    if done.returncode or len(steps) != STEPS:
        raise SystemExit(f"status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    assert all(loss == loss and abs(loss) < 1e9 for *_, loss in steps)
    times, waits = ([step[n] for step in steps[SKIPPED:]] for n in (1, 2))  # workers start before
    return BATCH * len(times) / sum(times), sum(waits) / sum(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the wait for data of two series.")
    parser.add_argument("--turns", type=int, default=3, help="turns that count (default: 3)")
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as scratch:
        folder, builds = Path(scratch), {}
        images = data(folder)
        for series in ("fast", "standard"):
            builds[series] = folder / series
            apply(builds[series], series)
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(turns):
            for device, seconds in DEVICES.items():
                for series, build in builds.items():
                    result = run(build, images, seconds, folder)
                    found.setdefault((device, series), []).append(result)
        for device, seconds in DEVICES.items():
            print(f"\n{device}: {seconds * 1000:.2f} ms an image")
            for series in builds:
                rates, shares = zip(*found[device, series])
                limit = [rate for rate, _ in found["no time", series]]
                share = f"{100 * statistics.median(shares):5.1f} % of a step is waiting"
                print(f"  {series:8} {statistics.median(rates):6.0f} images/s, {share}")
                print(f"           of its rate without a device: {compared(rates, limit)}")
            ours, theirs = ([rate for rate, _ in found[device, series]] for series in builds)
            print(f"  fast against standard: {compared(ours, theirs)}, more is better")


if __name__ == "__main__":
    main()
