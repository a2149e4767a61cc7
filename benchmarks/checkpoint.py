"""What saving costs: the built script's `save_checkpoint` against a plain `torch.save`, and as a share of a step.

    python benchmarks/checkpoint.py [--runs 9] [--batch-size 8] [--arch resnet18 vit_b_16]

Both write the same state (weights and momentum) and both wait until it is on the disk; the plain one writes over its
file in place, as upstream does.  They take turns, and a ratio is the median of the ratios of a turn.  Seconds are those
of the clock, since to wait for the disk is what is measured.  A step is one of training on this machine's CPU.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision

# Turns that do not count: until there have been as many files as there will be, the disk cache takes memory that the
# system has not used before, and that is several times as slow as to write into it again.
WARM = 5

ROOT = Path(__file__).resolve().parent.parent


def built(folder: Path):
    """The script of the series `standard` as a module, with the modules that it imports."""
    command = [sys.executable, "-m", "patcher", "apply", "--out", str(folder / "build")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    sys.path.insert(0, str(folder / "build"))
    spec = importlib.util.spec_from_file_location(
        "distributed", folder / "build" / "distributed.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(function, *args) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def save_in_place(state: dict) -> None:
    torch.save(state, "plain.pth.tar")
    with open("plain.pth.tar", "rb") as file:
        os.fsync(file.fileno())


def measure(script, arch: str, batch_size: int, runs: int) -> None:
    model = torchvision.models.get_model(arch)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    images, target = torch.randn(batch_size, 3, 224, 224), torch.zeros(batch_size, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), target).backward()
        optimizer.step()

    args = script.parser.parse_args(["--data", "none", "--seed", "0"])
    step()
    steps = [seconds(step) for _ in range(3)]
    times = {"ours": [], "best": [], "plain": []}
    whole = {"epoch": 1, "arch": arch, **script.checkpoint.start(model, optimizer, args).state()}
    for turn in range(runs + WARM):
        turns = {
            "ours": (script.save_checkpoint, whole, False),
            "plain": (save_in_place, whole),
            "best": (script.save_checkpoint, whole, True),
        }
        order = [*turns][turn % 3 :] + [*turns][
            : turn % 3
        ]  # the first to write finds the disk in another state
        taken = {name: seconds(*turns[name]) for name in order}
        for name, one in taken.items() if turn >= WARM else ():
            times[name].append(one)
    size = os.path.getsize("checkpoint.pth.tar")
    for name in ("checkpoint.pth.tar", "plain.pth.tar"):
        saved = torch.load(name, weights_only=True)
        assert all(
            torch.equal(value, saved["state_dict"][key])
            for key, value in model.state_dict().items()
        ), name

    print(
        f"\n{arch}: {size / 1e6:.0f} MB; a step of {batch_size} images takes {statistics.median(steps):.2f} s here"
    )
    for name, what in (
        ("ours", "save_checkpoint"),
        ("best", "... that is the best, too"),
        ("plain", "torch.save, fsync"),
    ):
        share = statistics.median(times[name]) / statistics.median(steps)
        ratios = [a / b for a, b in zip(times[name], times["plain"])]
        print(
            f"  {statistics.median(times[name]):7.3f} s = {100 * share:5.1f} % of a step, "
            f"{statistics.median(ratios):5.2f} x plain (from {min(ratios):.2f} to {max(ratios):.2f})  {what}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the saving of a checkpoint.")
    parser.add_argument("--runs", type=int, default=9, help="turns that count (default: 9)")
    parser.add_argument("--batch-size", type=int, default=8, help="images a step (default: 8)")
    parser.add_argument(
        "--arch", nargs="+", default=["resnet18", "vit_b_16"], help="models (default: both)"
    )
    parser.add_argument(
        "--folder", default=None, help="on which disk (default: that of temporary files)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        script = built(Path(scratch))
        os.chdir(scratch)
        for arch in args.arch:
            measure(script, arch, args.batch_size, args.runs)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
