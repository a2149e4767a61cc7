"""What a training step costs in the build of this checkout, against that of another one.

    git worktree add /tmp/old COMMIT
    (cd /tmp/old && PYTHONPATH=/tmp/old python -m patcher apply)
    python benchmarks/step.py --against /tmp/old/build [--runs 5]

Both train resnet18 on two ranks of the CPU, with the same images in the same order.  They take
turns, and a ratio is the median of the ratios of a turn.  Seconds are counted from the line of one
step to that of a later one: of the clock, and of the CPU for all processes.  The latter hardly
change with the load, but do not show waiting.  Linux only.
"""

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import PYTHON, ROOT, apply, compared

sys.path.insert(0, str(ROOT / "examples"))
import digits

EVERY = 5  # steps from one line to the next
TORCHRUN = ["-m", "torch.distributed.run", "--local-addr=127.0.0.1", "--nproc_per_node=2"]
OPTIONS = ["--arch", "resnet18", "--batch-size", "8", "--workers", "1", "--device", "cpu"]
LINE = re.compile(r"Epoch: \[0\]\[ *(\d+)/\d+\].*Loss (\S+)")


def data(folder: Path, per_class: int) -> Path:
    """Training images of ten classes, and one of each to validate."""
    digits.write(folder, limit=per_class)
    for one in (folder / "val").iterdir():
        for path in sorted(one.iterdir())[1:]:
            path.unlink()
    return folder


def cpu_seconds(root: int) -> float:
    """CPU seconds of a process and all below it, so far."""
    parent, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            parent[int(path.parent.name)] = int(fields[1])
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
    family = {root}
    while new := {pid for pid, above in parent.items() if above in family} - family:
        family |= new
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


def run(build: Path, images: Path, out: Path) -> tuple[float, float, str]:
    """Train one epoch: seconds a step, CPU seconds a step, and the last loss."""
    command = [PYTHON, *TORCHRUN, str(build / "distributed.py"), *OPTIONS, "--seed", "0"]
    command += ["--print-freq", str(EVERY), "--epochs", "1", "--overwrite"]
    command += ["--data", str(images), "--output-dir", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        found = filter(None, map(LINE.match, process.stdout))
        clock = time.perf_counter
        seen = [(int(one[1]), clock(), cpu_seconds(process.pid), one[2]) for one in found]
    if process.returncode or not (out / "checkpoint.pth.tar").is_file():
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}")
    # Loading processes start within the first steps.
    (first, *begin, _), (last, *end, loss) = seen[1], seen[-1]
    return *((b - a) / (last - first) for a, b in zip(begin, end)), loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a training step of two builds.")
    add = parser.add_argument
    add("--against", type=Path, required=True, metavar="DIR", help="the other build")
    add("--runs", type=int, default=5, help="turns (default: 5)")
    add("--steps", type=int, default=35, help="steps a run (default: 35)")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        apply(folder / "build")
        builds = {"this": folder / "build", "other": args.against.resolve()}
        images = data(folder / "digits", -(-args.steps * 8 // 10))
        found: dict[str, list[tuple]] = {name: [] for name in builds}
        for turn in range(args.runs):
            for name in [*builds][:: 1 if turn % 2 else -1]:
                found[name].append(run(builds[name], images, folder / name))
                seconds, cpu, loss = found[name][-1]
                costs = f"{seconds:6.3f} s and {cpu:6.3f} CPU seconds a step"
                print(f"{name:5} {costs}, last loss {loss}", flush=True)
        for number, what in enumerate(("seconds a step", "CPU seconds a step")):
            this, other = ([one[number] for one in found[name]] for name in builds)
            medians = f"{statistics.median(this):.3f} against {statistics.median(other):.3f}"
            print(f"\n{what}: {medians}, {compared(this, other)}")


if __name__ == "__main__":
    main()
