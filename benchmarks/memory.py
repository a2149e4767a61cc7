"""What loading processes cost in memory: the build of `fast` against that of `standard`.

    python benchmarks/memory.py
    python benchmarks/memory.py --batch-size 8 --train 6 --val 2 --epochs 8  # what starting costs

Each trains a small model in one process on the CPU, on generated JPEG files of 500 x 375.  `kept`
is `fast` with workers of validation that stay, as those of `standard` do.  From the second epoch,
the memory of the whole tree of processes is added up twice a second: the proportional share (PSS)
of each, so what they share counts once, and what is in /dev/shm, where batches wait that no process
has mapped.  The start of the workers is in the time from the last line of training to the first of
validation, their end in that to the result.  Linux only.
"""

import argparse
import contextlib
import os
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from PIL import Image
from timing import PYTHON, apply

LINE = re.compile(r"(Epoch: \[(\d+)\]|Test: )\[ *(\d+)/(\d+)\]")
OPTIONS = ["--arch", "shufflenet_v2_x0_5", "--device", "cpu", "--lr", "0.01", "--seed", "0"]
OPTIONS += ["--print-freq", "1", "--overwrite"]
STAYS = "persistent_workers=args.workers > 0"
MIB = 2**20


def data(folder: Path, train: int, val: int) -> Path:
    """So many images in each part, in ten classes; there are sixteen different ones."""
    dice = random.Random(0)
    folder.mkdir()
    for number in range(16):
        small = Image.frombytes("RGB", (40, 30), dice.randbytes(3 * 40 * 30))
        image = small.resize((500, 375), Image.Resampling.BICUBIC)
        image.save(folder / f"{number}.jpg", quality=90)
    for part, count in (("train", train), ("val", val)):
        for number in range(count):
            place = folder / part / str(number % 10)
            place.mkdir(parents=True, exist_ok=True)
            os.link(folder / f"{number % 16}.jpg", place / f"{number:05}.jpg")
    return folder


def build(series: str, out: Path) -> Path:
    """The distributed script of a series; of `kept`, see above."""
    apply(out, "fast" if series == "kept" else series)
    script = out / "distributed.py"
    text = script.read_text()
    if series == "kept":
        before, number, after = text.rpartition("num_workers=args.workers,")
        text = f"{before}{number} {STAYS},{after}"
        script.write_text(text)
    assert text.count(STAYS) == (1 if series == "fast" else 2)
    return script


def tree(root: int) -> set[int]:
    """A process and all below it."""
    parent = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = {root}
    while new := {pid for pid, above in parent.items() if above in family} - family:
        family |= new
    return family


def pss(pids: set[int]) -> float:
    """MiB of these processes; what several share is counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)[1])
    return total / 1024


def in_shm() -> float:
    """MiB that /dev/shm holds, also of files without a name."""
    found = os.statvfs("/dev/shm")
    return (found.f_blocks - found.f_bfree) * found.f_frsize / MIB


def run(script: Path, images: Path, out: Path, args) -> dict:
    """Train: samples (PSS, /dev/shm, processes) by phase, seconds between lines, the results."""
    command = [PYTHON, str(script), *OPTIONS, "--data", str(images), "--output-dir", str(out)]
    command += ["--workers", str(args.workers), "--batch-size", str(args.batch_size)]
    command += ["--epochs", str(args.epochs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    found: dict = {"samples": defaultdict(list), "first": [], "all": [], "results": []}
    phase, ended, since, empty = "", threading.Event(), 0.0, in_shm()

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:

        def sample():
            while not ended.wait(0.5):
                now, pids = phase, tree(process.pid)
                sizes = pss(pids), in_shm() - empty, len(pids)
                if now == phase in ("training", "validation"):
                    found["samples"][now].append(sizes)

        sampler = threading.Thread(target=sample)
        sampler.start()
        for line in process.stdout:
            if line.startswith(" * "):
                found["results"].append(line.strip())
                if phase:
                    found["all"].append(time.perf_counter() - since)
                    phase = "between"
                continue
            if not (one := LINE.match(line)) or (not phase and one[2] in (None, "0")):
                continue  # the first epoch
            if one[2] is None and one[3] == "0":
                found["first"].append(time.perf_counter() - since)
            phase = "validation" if one[2] is None else "training"
            since = since if one[2] is None else time.perf_counter()
        errors = process.stderr.read()
        ended.set()
        sampler.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {process.returncode}\n{errors}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of the loading processes of three builds.")
    add = parser.add_argument
    add("-j", "--workers", type=int, default=8, help="of each loader (default: 8)")
    add("-b", "--batch-size", type=int, default=64)
    add("--train", type=int, default=20, help="batches to train an epoch (default: 20)")
    add("--val", type=int, default=16, help="batches to validate (default: 16)")
    add("--epochs", type=int, default=3)
    add("--runs", type=int, default=1, help="turns (default: 1)")
    names = ("standard", "fast", "kept")
    add("--builds", nargs="+", default=names, choices=names, metavar="NAME")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        counts = (args.batch_size * count for count in (args.train, args.val))
        images = data(folder / "images", *counts)
        scripts = {name: build(name, folder / name) for name in args.builds}
        for _ in range(args.runs):
            for name, script in scripts.items():
                found = run(script, images, folder / "out", args)
                print(f"{name}: {found['results'][-1]}")
                for phase, samples in found["samples"].items():
                    sizes, shm, processes = zip(*samples)
                    median, waiting = statistics.median(sizes), statistics.median(shm)
                    print(
                        f"  {phase:10}  PSS {median:6.0f} MiB (most {max(sizes):6.0f}), /dev/shm "
                        f"{waiting:5.0f} (most {max(shm):5.0f}), {min(processes)} to "
                        f"{max(processes)} processes, {len(samples)} samples"
                    )
                for what, key in (("first line", "first"), ("result", "all")):
                    median = statistics.median(found[key])
                    span = f"{min(found[key]):.2f} to {max(found[key]):.2f}"
                    print(f"  from training to the {what} of validation: {median:.2f} s ({span})")


if __name__ == "__main__":
    main()
