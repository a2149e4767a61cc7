"""What saving costs: the built script's `save_checkpoint` against a plain `torch.save`.

    python benchmarks/checkpoint.py [--runs 9] [--batch-size 8] [--arch resnet18 vit_b_16]

Both write the same state (weights and momentum), and both wait until it is on the disk; the plain
one writes over its file in place, as upstream does.  They take turns, and a ratio is the median of
the ratios of a turn.  Seconds are those of the clock, as waiting for the disk is what is measured.
A step, for comparison, is one of training on this machine's CPU.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision
from timing import ROOT, apply, compared

# Turns that do not count: until there are as many files as there will be, the disk cache takes
# memory that the system has not used before, which is several times as slow to write to.
WARM = 5


def built(folder: Path):
    """The script of the default series as a module, with the modules that it imports."""
    apply(folder)
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("distributed", folder / "distributed.py")
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

    def train() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), target).backward()
        optimizer.step()

    args = script.parser.parse_args(["--data", "none", "--seed", "0"])
    train()
    steps = [seconds(train) for _ in range(3)]
    times = {"ours": [], "best": [], "plain": []}
    whole = {"epoch": 1, "arch": arch, **script.checkpoint.start(model, optimizer, args).state()}
    for turn in range(runs + WARM):
        turns = {
            "ours": (script.save_checkpoint, whole, False),
            "plain": (save_in_place, whole),
            "best": (script.save_checkpoint, whole, True),
        }
        first = turn % 3  # which finds the disk in another state
        order = [*turns][first:] + [*turns][:first]
        taken = {name: seconds(*turns[name]) for name in order}
        for name, one in taken.items() if turn >= WARM else ():
            times[name].append(one)
    size = os.path.getsize("checkpoint.pth.tar")
    for name in ("checkpoint.pth.tar", "plain.pth.tar"):
        saved = torch.load(name, weights_only=True)
        for key, value in model.state_dict().items():
            assert torch.equal(value, saved["state_dict"][key]), name

    step = statistics.median(steps)
    print(f"\n{arch}: {size / 1e6:.0f} MB; a step of {batch_size} images takes {step:.2f} s here")
    labels = {"ours": "save_checkpoint", "best": "... that is the best, too"}
    for name, what in {**labels, "plain": "torch.save, fsync"}.items():
        save = statistics.median(times[name])
        plain = compared(times[name], times["plain"])
        print(f"  {save:7.3f} s = {100 * save / step:5.1f} % of a step, {plain} plain  {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the saving of a checkpoint.")
    add = parser.add_argument
    add("--runs", type=int, default=9, help="turns that count (default: 9)")
    add("--batch-size", type=int, default=8, help="images a step (default: 8)")
    add("--arch", nargs="+", default=["resnet18", "vit_b_16"], help="models (default: both)")
    add("--folder", help="on which disk (default: that of temporary files)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        script = built(Path(scratch, "build"))
        os.chdir(scratch)
        for arch in args.arch:
            measure(script, arch, args.batch_size, args.runs)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
