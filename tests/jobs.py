"""Ring 3: jobs that train, as real processes or as ranks forked from one, and how they end.

Importing torch takes seconds, and hundreds of jobs are run: only tests of launchers, and of Python
itself, start real processes.
"""

import fcntl
import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "examples"))
import digits  # noqa: E402

FAULTS = REPO / "tests" / "faults"
# Older versions take one and the same port for all jobs of a host that ask for none.
FREE_PORT = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
TORCHRUN = ["-m", "torch.distributed.run", "--local-addr=127.0.0.1", *FREE_PORT]
PATIENCE = 600  # seconds: nothing takes that long, however busy the machine is


@dataclass
class Ended:
    """How a job has ended: by rank, or for the whole command, and what it has left."""

    statuses: list[int]
    outs: list[str]
    errs: list[str]
    folder: Path
    logs: Path

    @property
    def status(self) -> int:
        """The first that is not 0."""
        return next(filter(None, self.statuses), 0)

    @property
    def err(self) -> str:
        return "".join(self.errs)

    @property
    def events(self) -> list[dict]:
        """What the stand-in for torch.cuda has noted."""
        log = self.logs / "events"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    @property
    def fired(self) -> "dict | None":
        """When the fault came, see `tests/faults/sitecustomize.py`."""
        fired = self.logs / "fired"
        return json.loads(fired.read_text()) if fired.exists() else None


def wait_for(what, of="this point"):
    """Wait until `what()` is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, f"it has not come to {of}"
        time.sleep(0.02)
    return found


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A function that makes a folder once for all processes of `pytest -n`."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared"
    root.mkdir(exist_ok=True)

    def shared(name, make):
        name = re.sub(r"[^\w.=-]+", "_", name) or "default"
        with open(root / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (root / name).exists():
                make(root / f"{name}.part")
                (root / f"{name}.part").rename(root / name)
        return root / name

    return shared


@pytest.fixture(scope="session")
def data(shared):
    """Ten classes with two images each to train on and two to validate."""
    return shared("digits", lambda folder: digits.write(folder, limit=2))


@pytest.fixture(scope="session")
def weights(shared):
    """A checkpoint with upstream's four keys, of a model for the ten classes of `data`."""

    def make(folder):
        import torch

        model, folder = tiny_models()["tiny"](num_classes=10), Path(folder)
        folder.mkdir()
        state = {"epoch": 1, "arch": "tiny", "best_acc1": 10.0, "state_dict": model.state_dict()}
        torch.save(state, folder / "weights.pth.tar")

    return shared("weights", make) / "weights.pth.tar"


def tiny_models():
    """The builders of `tests/tiny_models` by name."""
    import runpy

    return runpy.run_path(str(REPO / "tests/tiny_models/sitecustomize.py"))["builders"]()


@pytest.fixture(scope="session")
def build_of(shared):
    """A function that gives the folder built with these arguments to `apply`."""

    def build_of(*arguments):
        def make(out):
            command = [sys.executable, "-m", "patcher", "apply", "--out", str(out), *arguments]
            subprocess.run(command, cwd=REPO, check=True, stdout=subprocess.DEVNULL)

        return shared("build" + "".join(arguments), make)

    return build_of


@pytest.fixture(scope="session")
def server():
    """What starts jobs, see `tests/faults/server.py`: of a request, what waits for its end."""
    environment = {**os.environ, "PYTHONPATH": str(FAULTS), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, FAULTS / "server.py"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    ended, count = {}, 0

    def start(**request):
        nonlocal count
        count += 1
        number = count
        process.stdin.write(json.dumps({"id": number, **request}, default=str) + "\n")
        process.stdin.flush()

        def wait():
            while number not in ended:
                line = json.loads(process.stdout.readline())
                ended[line["id"]] = line
            return ended[number]

        return wait

    yield start
    process.stdin.close()
    process.wait(PATIENCE)


@pytest.fixture(scope="session")
def fork(server, tmp_path_factory):
    """A function that starts a job of forked ranks, and gives one that waits for its end.

    `ranks` None is one process without a launcher. The job writes to `folder`, where it also starts
    (see `--output-dir`), meets `fault`, see `tests/faults/sitecustomize.py`, and has `gpus`
    pretended devices; None: the CPU as it is. `own` is what one rank gets besides.
    """

    def fork(
        script, *options, ranks=None, gpus=None, folder=None, fault=None, own=None,
        agent_store=False, **env,
    ):  # fmt: skip
        logs = tmp_path_factory.mktemp("job")
        folder = folder or logs / "run"
        folder.mkdir(parents=True, exist_ok=True)
        env |= {"STAND_IN_LOG": logs / "events"}
        if fault is not None:
            env |= {"FAULT": json.dumps(fault), "FAULT_FOLDER": logs}
        wait = server(
            script=script,
            argv=[str(option) for option in options],
            ranks=ranks,
            gpus=gpus,
            cwd=folder,
            logs=logs,
            env=env,
            agent_store=agent_store,
            own=own or {},
        )

        def end():
            result = wait()
            lock = folder / "run.lock"  # gone with its owner, unless that was killed
            owner = json.loads(lock.read_text())["pid"] if lock.exists() else None
            assert owner != result["pids"][0] or result["statuses"][0] in (-9, -3)
            outs, errs = (
                [(logs / f"{name}.{rank}").read_text() for rank in range(ranks or 1)]
                for name in ("out", "err")
            )
            return Ended(result["statuses"], outs, errs, folder, logs)

        end.logs, end.folder = logs, folder
        return end

    return fork


@pytest.fixture
def run(tmp_path, fork):
    """A function that runs a script in the test's own folder, by forked ranks; see `fork`."""

    def run(script, *options, **given):
        return fork(script, *options, folder=tmp_path / "run", **given)()

    (tmp_path / "run").mkdir(exist_ok=True)
    return run


def environment_of(gpus=None, fault=None, logs=None):
    """The environment of a real process: see `fork`."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO / "tests/tiny_models")}
    if gpus is not None:
        env |= {"FAKE_GPUS": str(gpus), "STAND_IN_LOG": str(logs / "events")}
    if fault is not None:
        env |= {"PYTHONPATH": str(FAULTS), "FAULT": json.dumps(fault), "FAULT_FOLDER": str(logs)}
    return env


@pytest.fixture
def command(tmp_path):
    """A function that runs `python` with these arguments, in a folder of the test, as users do."""
    logs, folder = tmp_path / "logs", tmp_path / "run"
    for new in (logs, folder):
        new.mkdir(exist_ok=True)

    def command(*argv, gpus=None, fault=None):
        if argv[: len(TORCHRUN)] == tuple(TORCHRUN):
            # A file per rank and stream: on one pipe the lines of two ranks run into each other.
            split = ["--redirects=3", f"--log-dir={logs}"]
            argv = [*TORCHRUN, *split, *argv[len(TORCHRUN) :]]
        done = subprocess.run(
            [sys.executable, *map(str, argv)],
            cwd=folder,
            env=environment_of(gpus, fault, logs),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        # A launcher that was killed may end before its ranks.
        pids = [int(path.read_text()) for path in logs.glob("[0-9]") if path.is_file()]
        wait_for(lambda: not any(map(running, pids)), "the end of all ranks")
        outs, errs = (
            [path.read_text() for path in sorted(logs.rglob(f"{name}.log"))]
            for name in ("stdout", "stderr")
        )
        return Ended([done.returncode], outs or [done.stdout], [done.stderr, *errs], folder, logs)

    return command


@pytest.fixture(scope="session")
def noise(shared):
    """Four classes of noise with some colour: six images each to train on, five to validate."""

    def make(folder):
        from PIL import Image

        dice = random.Random(1)
        for part, count in (("train", 6), ("val", 5)):
            for label in range(4):
                (folder / part / str(label)).mkdir(parents=True)
                for number in range(count):
                    image = Image.new("RGB", (8, 8))
                    for place in range(64):
                        colour = (dice.randrange(200) + 30 * (part == label) for part in range(3))
                        image.putpixel((place % 8, place // 8), tuple(colour))
                    image.save(folder / part / str(label) / f"{number}.png")

    return shared("noise", make)
