"""From the command to a model that knows the digits: seconds until validation reaches 95 %.

    python benchmarks/finish.py [--arch resnet18] [--turns 1] [--seed 0]

One process on two cores, with two loading processes, the same model, images, batch, learning rate
and seed.  "plain" is what a user would write after torchvision's reference recipe: an ImageFolder,
Pillow, float32, a loop; its code stands below.  `standard` and `fast` are `distributed.py` of the
two series.  Each contestant ends at the first validation of at least 95 %.  CPU time is that of the
process and its loading processes; other work on the machine does not count there.

Checked: the epochs that each needed and its accuracies; and that the model of `fast` has the same
accuracy on upstream's pixels (`-e --exact-transforms`) as on its own, to 0.2 points.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import PYTHON, ROOT, apply

sys.path.insert(0, str(ROOT / "examples"))

GOAL = 95.0
BATCH, RATE, EPOCHS = 16, 0.01, 15
RESULT = re.compile(r" \* Acc@1 ([\d.]+)")


def plain(data: Path, arch: str, seed: int) -> None:
    """Train as a user would."""
    import torch
    from torchvision import datasets, models, transforms

    torch.manual_seed(seed)
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    ends = [transforms.ToTensor(), normalize]
    crops = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    centre = [transforms.Resize(256), transforms.CenterCrop(224)]
    train, val = (
        torch.utils.data.DataLoader(
            datasets.ImageFolder(data / part, transforms.Compose([*steps, *ends])),
            batch_size=BATCH,
            shuffle=part == "train",
            num_workers=2,
        )
        for part, steps in (("train", crops), ("val", centre))
    )
    model = models.get_model(arch, num_classes=10)
    criterion = torch.nn.CrossEntropyLoss()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4)
    for _ in range(EPOCHS):
        model.train()
        for images, labels in train:
            loss = criterion(model(images), labels)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        model.eval()
        with torch.inference_mode():
            right = [(model(images).argmax(1) == labels).sum().item() for images, labels in val]
        print(f" * Acc@1 {100 * sum(right) / len(val.dataset):.3f}", flush=True)


def cpu_seconds(group: int) -> float:
    """What all processes of a process group have used, with those of their children that ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def until_goal(command: list) -> tuple[float, float, list[float]]:
    """Seconds of the clock and of the CPU until the goal, and the accuracies on the way."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1"}
    began, accuracies = time.perf_counter(), []
    process = subprocess.Popen(
        [*map(str, command)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    for line in process.stdout:
        if found := RESULT.match(line):
            accuracies.append(float(found[1]))
            if accuracies[-1] >= GOAL:
                break
    else:
        raise SystemExit(f"{command}: ended at {accuracies}")
    clock, cpu = time.perf_counter() - began, cpu_seconds(process.pid)
    process.stdout.close()
    time.sleep(2)  # the checkpoint is written after that line
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return clock, cpu, accuracies


def accuracy(command: list) -> float:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return float(RESULT.findall(done.stdout)[0])


def main() -> None:
    if sys.argv[1:2] == ["--plain"]:
        plain(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    import digits

    parser = argparse.ArgumentParser(description="Time a whole training, to 95 % of the digits.")
    parser.add_argument("--arch", default="resnet18", help="the model (default: resnet18)")
    parser.add_argument("--turns", type=int, default=1, help="turns, each with its seed")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first turn (default: 0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = digits.write(folder / "data")
        common = ["--data", data, "--arch", args.arch, "--batch-size", BATCH, "--device", "cpu"]
        trains = ["--lr", RATE, "--epochs", EPOCHS, "-j", 2]
        for series in ("standard", "fast"):
            apply(folder / series, series)
        for seed in range(args.seed, args.seed + args.turns):
            out = {series: folder / f"{series}-{seed}" for series in ("standard", "fast")}
            contestants = {"plain": [PYTHON, __file__, "--plain", data, args.arch, seed]}
            for series, runs in out.items():
                options = [*common, *trains, "--seed", seed, "--output-dir", runs]
                contestants[series] = [PYTHON, folder / series / "distributed.py", *options]
            clocks, cpus = {}, {}
            for name, command in contestants.items():
                clocks[name], cpus[name], accuracies = until_goal(command)
                print(
                    f"{args.arch}, seed {seed}: {name:8} {clocks[name]:6.0f} s, "
                    f"CPU {cpus[name]:6.0f} s, {cpus['plain'] / cpus[name]:.2f} x; "
                    f"Acc@1 {accuracies}, {cpus[name] / len(accuracies):.0f} s CPU an epoch",
                    flush=True,
                )
            saved = ["-e", "--resume", out["fast"] / "model_best.pth.tar"]
            evaluate = [PYTHON, folder / "fast/distributed.py", *common, *saved]
            found = [accuracy([*evaluate, *more]) for more in ([], ["--exact-transforms"])]
            print(f"the model of fast: {found[0]} % on its own pixels, {found[1]} % on upstream's")
            assert abs(found[0] - found[1]) <= 0.2, found


if __name__ == "__main__":
    main()
