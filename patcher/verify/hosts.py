"""`verify` as the ranks of torchrun, on one host or several.

Rank 0 does what `verify` does without a launcher, and prints. The others only start the trainings
that it names. All of them need one folder, which the hosts share, as they share the output folder
of a training: it holds the build, the images and the runs, and notes by which the ranks hear of
each other.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from patcher.core.problem import UsageError
from patcher.verify import training

PATIENCE = 60.0  # seconds in which all ranks have to have begun, or ended
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # as torchrun sets them
NAMES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
Note = dict[str, object]
Tell = Callable[[str], None]


class Ranks(NamedTuple):
    """Who this process is, and where the notes are."""

    rank: int
    world: int
    local_world: int
    notes: Path
    start: str  # what all ranks of one start have in common, and those of another have not

    def write(self, name: str, note: Note) -> None:
        path = self.notes / f".{name}.{self.rank}"
        path.write_text(json.dumps({**note, "start": self.start}))
        path.replace(self.notes / name)

    def read(self, name: str) -> Note | None:
        """A note of this start, if it is there."""
        try:
            note: Note = json.loads((self.notes / name).read_text())
        except FileNotFoundError:
            return None
        return note if note["start"] == self.start else None

    def all(self, kind: str) -> dict[int, Note]:
        found = {rank: self.read(f"{kind}-{rank}") for rank in range(self.world)}
        return {rank: note for rank, note in found.items() if note}

    def wait(self, is_so: Callable[[], object]) -> None:
        """Until it is so, or for PATIENCE."""
        end = time.monotonic() + PATIENCE
        while not is_so() and time.monotonic() < end:
            time.sleep(0.1)

    def say_hello(self) -> None:
        self.write(f"rank-{self.rank}", {"host": socket.gethostname()})

    def hosts(self) -> tuple[str, dict[str, list[int]]]:
        """Why not all ranks are there, or ""; and the ranks of each host."""
        self.wait(lambda: len(self.all("rank")) == self.world)
        found, hosts = self.all("rank"), dict[str, list[int]]()
        for rank, note in found.items():
            hosts.setdefault(str(note["host"]), []).append(rank)
        missing = ", ".join(str(rank) for rank in range(self.world) if rank not in found)
        here = f"{self.notes.parent} on {socket.gethostname()}"
        return f"no word from rank {missing} in {here}: share it" if missing else "", hosts

    def failure(self, number: int) -> str:
        """What a rank says of the failure of a training: the one that has the script's own line."""
        ended = self.all(f"ended-{number}").items()
        failed = [(rank, str(note["why"])) for rank, note in ended if note["status"]]
        failed.sort(key=lambda one: (".py: error: " not in one[1], "Error" not in one[1]))
        return f"rank {failed[0][0]}: {failed[0][1]}" if failed else ""

    def train(self, number: int, name: str, command: list[str], tell: Tell) -> training.Training:
        """Be this rank in a training, which ends if another rank has failed."""
        runs = self.notes.parent / "runs/distributed"
        folder = runs / f"rank-{self.rank}" if self.rank else runs
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        run = training.start(name, command, folder, env, tell, lambda: self.failure(number))
        self.write(f"ended-{number}-{self.rank}", {"status": run.status, "why": run.last_words})
        return run

    def lead(self, number: int, name: str, command: list[str], tell: Tell) -> training.Training:
        """As rank 0, begin a training on all ranks; it has failed if any of them has."""
        self.write(f"training-{number}", {"command": command})
        run = self.train(number, name, command, tell)
        kind = f"ended-{number}"
        self.wait(lambda: len(self.all(kind)) == self.world)
        silent = [
            f"rank {rank} goes on" for rank in range(self.world) if rank not in self.all(kind)
        ]
        if why := self.failure(number) or ", ".join(silent):
            run.status, run.lines = run.status or 1, [*run.lines, f"error: {why}"]
        return run


def ranks(folder: Path | None) -> Ranks | None:
    """Those of the launcher, if there is one with more than one rank."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return None
    missing = [name for name in NUMBERS + NAMES if name not in os.environ]
    if missing:
        raise UsageError(f"verify runs alone or under torchrun, which sets {', '.join(missing)}")
    if folder is None:
        hint = "They all use it, so it has to be on a disk that all hosts share."
        raise UsageError("verify as the ranks of a job needs --folder DIR", hint=hint)
    rank, world, local_world = (int(os.environ[name]) for name in NUMBERS)
    start = " ".join(os.environ[name] for name in NAMES)
    return Ranks(rank, world, local_world, folder.absolute() / "ranks", start)


@contextmanager
def leading(job: Ranks) -> Iterator[None]:
    """As rank 0, call the others; in the end let them go."""
    job.notes.mkdir()
    job.write("begun", {})
    job.say_hello()
    try:
        yield
    finally:
        job.write("over", {})


def follow(job: Ranks) -> int:
    """As another rank, start each training that rank 0 names; the exit status."""
    job.wait(lambda: job.read("begun"))
    if not job.read("begun"):
        raise UsageError(
            f"rank {job.rank} on {socket.gethostname()}: nothing of rank 0 in {job.notes.parent}",
            hint="Put --folder on a disk that all hosts share.",
        )
    job.say_hello()
    number = 1
    while not job.read("over"):
        if note := job.read(f"training-{number}"):
            command = note["command"]
            assert isinstance(command, list)
            job.train(number, "distributed.py", command, lambda where: None)
            number += 1
        time.sleep(0.1)
    return 0
