"""Whole processes and what they cost, for the benchmarks here."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable


def environment(*more: Path) -> dict[str, str]:
    """That of a process that can import `patcher`, and what is in these folders."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *more)))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    return env


def spent(command: Sequence, folder: Path, codes: Sequence[int] = (0,)) -> tuple[float, float]:
    """CPU seconds of a process and its children, and MiB of the largest of them.

    The process has to end with one of these exit statuses.
    """
    env = environment(folder)
    env["PATH"] = os.pathsep.join([str(Path(command[0]).parent), env["PATH"]])
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in codes:
            log.seek(0)
            said = log.read().decode()[-3000:]
            raise SystemExit(f"{' '.join(map(str, command))}: {process.returncode}\n{said}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def apply(out: Path, series: str = "standard") -> None:
    """Build a series into a folder."""
    command = [PYTHON, "-m", "patcher", "apply", "--series", series, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of a turn: a machine that changes its speed changes it for both."""
    return statistics.median(a / b for a, b in zip(ours, theirs))


def compared(ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratios = [a / b for a, b in zip(ours, theirs)]
    return f"{ratio(ours, theirs):6.3f} x (from {min(ratios):.3f} to {max(ratios):.3f})"
