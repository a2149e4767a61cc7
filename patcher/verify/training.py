"""Runs of built scripts: start one, follow what it prints, and keep that."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STEP = re.compile(r"Epoch: \[(\d+)\]\[ *(\d+)/(\d+)\].*?Time +(\S+) .*?Data +(\S+) .*?Loss +(\S+) ")
RESULT = re.compile(r" \* Acc@1 ([\d.]+) Acc@5 ([\d.]+)")
# Without --local-addr torchrun hangs if the host's own name does not resolve; older versions take
# one and the same port for all jobs of a host that ask for none.
TORCHRUN = (
    *("-m", "torch.distributed.run", "--local-addr=127.0.0.1"),
    *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
)
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Step:
    """A line that a training prints; times in seconds."""

    epoch: int
    number: int
    of: int
    time: float
    wait: float
    loss: float


@dataclass
class Training:
    """What a script has done and printed."""

    name: str
    status: int = 0
    seconds: float = 0.0
    steps: list[Step] = field(default_factory=list)
    results: list[tuple[float, float]] = field(default_factory=list)  # Acc@1 and Acc@5
    lines: list[str] = field(default_factory=list)

    @property
    def last_words(self) -> str:
        """The line that most likely says why it ended; below it, where there is more."""
        said = [line.strip() for line in self.lines if line.strip()]
        why = [line for line in said if re.match(r"(\w+\.py: )?(error|\w*Error)\b", line)]
        return (why or said or ["it printed nothing"])[-1]

    def read(self, line: str) -> str:
        """Take in a line; where the run now is, or nothing new."""
        self.lines.append(line)
        if found := STEP.match(line):
            epoch, number, of = map(int, found.groups()[:3])
            self.steps.append(Step(epoch, number, of, *map(float, found.groups()[3:])))
            return f"{self.name}: epoch {epoch + 1}, step {number + 1} of {of}"
        if found := RESULT.match(line):
            self.results.append((float(found[1]), float(found[2])))
        return f"{self.name}: validating" if line.startswith("Test:") else ""


def environment(ranks: int, cores: int) -> dict[str, str]:
    """That of a run: no launcher's variables, and the cores shared by the ranks."""
    env = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    env.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks)))
    return {**env, "PYTHONUNBUFFERED": "1"}


def start(
    name: str,
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    tell: Callable[[str], None],
    is_over: Callable[[], object] = lambda: False,
) -> Training:
    """Run `python` with `command` in a folder, and say where it is.  Leaves a log in the folder.

    The run is ended as soon as it `is_over` for others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run, begun = Training(name), time.monotonic()
    tell(f"{name}: starting")
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for this process, which then ends the run in order
    )
    threading.Thread(target=_watch, args=(process, is_over), daemon=True).start()
    try:
        assert process.stdout is not None
        with (folder / "log").open("a") as log:
            for line in process.stdout:
                log.write(line)
                if at := run.read(line.rstrip("\n")):
                    tell(at)
        run.status = process.wait()
    finally:
        _end(process)
    run.seconds = time.monotonic() - begun
    return run


def _watch(process: subprocess.Popen[str], is_over: Callable[[], object]) -> None:
    while process.poll() is None:
        if is_over():
            _end(process)
        time.sleep(0.5)


def _end(process: subprocess.Popen[str], patience: float = 40.0) -> None:
    """End a run that still goes on: a launcher passes SIGTERM on, and ranks may save first."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
