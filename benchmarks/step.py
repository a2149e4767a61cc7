"""What a training step costs in the build of this checkout, against that of another one, an older commit for example.

    git worktree add /tmp/old COMMIT
    (cd /tmp/old && PYTHONPATH=/tmp/old python -m patcher apply)
    python benchmarks/step.py --against /tmp/old/build [--runs 5]

Both train resnet18 on two ranks of the CPU, with the same images in the same order.  They take turns, and a ratio is
the median of the ratios of a turn.  Seconds are counted from the line of one step to that of a later one: of the clock,
and of the CPU for all processes.  The latter hardly change with the load, but do not show waiting.  Linux only.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import digits  # noqa: E402

EVERY = 5  # steps from one line to the next
TORCHRUN = ["-m", "torch.distributed.run", "--local-addr=127.0.0.1", "--nproc_per_node=2"]
OPTIONS = [
    "--arch",
    "resnet18",
    "--batch-size",
    "8",
    "--workers",
    "1",
    "--device",
    "cpu",
    "--seed",
    "0",
]
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
    command = [
        sys.executable,
        *TORCHRUN,
        str(build / "distributed.py"),
        *OPTIONS,
        "--print-freq",
        str(EVERY),
    ]
    command += ["--data", str(images), "--epochs", "1", "--output-dir", str(out), "--overwrite"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        found = filter(None, map(LINE.match, process.stdout))
        seen = [
            (int(one[1]), time.perf_counter(), cpu_seconds(process.pid), one[2]) for one in found
        ]
    if process.returncode or not (out / "checkpoint.pth.tar").is_file():
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}")
    (first, *begin, _), (last, *end, loss) = (
        seen[1],
        seen[-1],
    )  # loading processes start within the first steps
    return *((b - a) / (last - first) for a, b in zip(begin, end)), loss


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time a training step of this build against that of another one."
    )
    parser.add_argument(
        "--against", type=Path, required=True, metavar="DIR", help="the other build"
    )
    parser.add_argument("--runs", type=int, default=5, help="turns (default: 5)")
    parser.add_argument("--steps", type=int, default=35, help="steps a run (default: 35)")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        apply = [sys.executable, "-m", "patcher", "apply", "--out", str(folder / "build")]
        subprocess.run(apply, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        builds = {"this": folder / "build", "other": args.against.resolve()}
        images = data(folder / "digits", -(-args.steps * 8 // 10))
        found: dict[str, list[tuple]] = {name: [] for name in builds}
        for turn in range(args.runs):
            for name in [*builds][:: 1 if turn % 2 else -1]:
                found[name].append(run(builds[name], images, folder / name))
                seconds, cpu, loss = found[name][-1]
                print(
                    f"{name:5} {seconds:6.3f} s and {cpu:6.3f} CPU seconds a step, last loss {loss}",
                    flush=True,
                )
        for number, what in enumerate(("seconds a step", "CPU seconds a step")):
            this, other = ([one[number] for one in found[name]] for name in builds)
            ratios = [a / b for a, b in zip(this, other)]
            print(
                f"\n{what}: {statistics.median(this):.3f} against {statistics.median(other):.3f}, "
                f"{statistics.median(ratios):.3f} x (from {min(ratios):.3f} to {max(ratios):.3f})"
            )


if __name__ == "__main__":
    main()
