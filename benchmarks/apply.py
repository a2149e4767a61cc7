"""What `patcher apply` costs, as whole processes, in CPU time, against its floor and against LibCST's own tool.

    python benchmarks/apply.py [--runs 15]

The commands of a row take turns (A B C A B C ...), so a machine that changes its speed changes it for all; a ratio is
the median of the ratios of a turn.  Every run's result is checked, so that nobody is fast by doing nothing.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
APPLY = [PYTHON, "-m", "patcher", "apply", "--series", "guide"]


def cpu_seconds(command: list[str], folder: Path) -> float:
    """User and system time of one process and its children; it has to succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: status {process.returncode}\n{errors.decode()}")
    return usage.ru_utime + usage.ru_stime


def row(title: str, runs: int, contestants: dict[str, tuple]) -> None:
    """Time `contestants`, the first against each other: name -> (command, folder, prepare, check)."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(runs + 1):
        for name, (command, folder, prepare, check) in contestants.items():
            prepare()
            seconds = cpu_seconds(command, folder)
            check()
            if turn:  # the first turn fills caches
                times[name].append(seconds)
    ours, *others = times
    print(f"\n{title}")
    for name, seconds in times.items():
        print(f"  {statistics.median(seconds) * 1000:7.1f} ms  {name}")
    for name in others:
        ratios = [a / b for a, b in zip(times[ours], times[name])]
        print(
            f"  {statistics.median(ratios):7.2f} x   {name}   (from {min(ratios):.2f} to {max(ratios):.2f})"
        )


def nothing() -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time patcher apply against its floor and against libcst.tool."
    )
    parser.add_argument("--runs", type=int, default=15, help="turns that count (default: 15)")
    runs = parser.parse_args().runs

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build, script = folder / "build", folder / "distributed.py"

        cpu_seconds(APPLY, folder)
        expected = {path: path.read_bytes() for path in build.rglob("*.*")}

        def intact() -> None:
            assert {path: path.read_bytes() for path in build.rglob("*.*")} == expected

        def clean() -> None:
            shutil.rmtree(build)

        def pristine() -> None:
            shutil.copy(ROOT / "upstream" / "distributed.py", script)

        def reshaped() -> None:
            assert b"correct[:k].reshape(-1)" in script.read_bytes()

        trace = subprocess.run(
            [PYTHON, "-X", "importtime", *APPLY[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ).stderr
        assert "argparse" in trace and "libcst" not in trace, (
            "a run with nothing to do has imported LibCST"
        )

        row(
            "nothing to do, all inputs and outputs checked by sha256",
            runs,
            {
                "patcher apply --series guide": (APPLY, folder, nothing, intact),
                "python -c pass": ([PYTHON, "-c", "pass"], folder, nothing, nothing),
            },
        )
        row(
            "cold: both files, the guide series, no build yet",
            runs,
            {
                "patcher apply --series guide": (APPLY, folder, clean, intact),
                "python -c 'import libcst'": (
                    [PYTHON, "-c", "import libcst"],
                    folder,
                    nothing,
                    nothing,
                ),
            },
        )
        options = ["--hide-progress", "--no-format", "-j", "1"]
        tool = [
            PYTHON,
            "-m",
            "libcst.tool",
            "codemod",
            "-x",
            "patcher.codemod.ReshapeTopK",
            str(script),
            *options,
        ]
        row(
            "one patch: patcher on both files, libcst.tool on one",
            runs,
            {
                "patcher apply --series guide (three patches)": (APPLY, folder, clean, intact),
                "python -m libcst.tool codemod (one patch)": (tool, folder, pristine, reshaped),
            },
        )


if __name__ == "__main__":
    main()
