"""A project in a temporary folder, and two ways to run `patcher` on it."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from patcher import cli
from patcher.build import build, upstream
from patcher.build.project import Project, Request

# A shell lets what it runs in the background ignore Ctrl-C, nohup SIGHUP, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)  # one that is handled here is not ignored there

for name in [
    name for name in os.environ if name.startswith("GIT_")
]:  # a hook names its own repository by them
    del os.environ[name]

GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CEILING_DIRECTORIES": "/",
}  # nobody's settings
REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "examples"))
import digits  # noqa: E402

# Older versions take one and the same port for all jobs of a host that ask for none.
FREE_PORT = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
TORCHRUN = ["-m", "torch.distributed.run", "--local-addr=127.0.0.1", *FREE_PORT]


class Result(NamedTuple):
    """What a run left: exit status and the two streams, which are not UTF-8 where a diff is not."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode("utf-8", "surrogateescape")

    @property
    def err(self) -> str:
        return self.stderr.decode("utf-8", "surrogateescape")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """The root of a copy of `upstream/` and `patches/`, which is the working directory too."""
    root = tmp_path / "project"
    for name in ("upstream", "patches"):
        shutil.copytree(REPO / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(root)
    return root


THREE_PATCHES = """\
guide = {
    "local_rank_from_env": {},
    "reshape_topk": {},
    "configurable_gpus": {},
}

standard = guide | {
    "local_rank_from_env": {"fallback": True},
    "configurable_gpus": {"optional": True},
}

SERIES = {"guide": guide, "standard": standard}
DEFAULT = "standard"
"""


@pytest.fixture(scope="session")
def toy_source(tmp_path_factory) -> Path:
    """A project with two small scripts; its three series reach none, some and nearly all of its support modules."""
    root = tmp_path_factory.mktemp("toy")
    shutil.copytree(
        REPO / "tests/toy", root, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    (root / "upstream/lock.json").write_text(
        '{"original": {"repository": "https://example.org", "commit": "1a2b3c4"}}'
    )
    relock(root)
    return root


@pytest.fixture
def toy(toy_source, tmp_path, monkeypatch) -> Path:
    """The root of a copy of it, which is the working directory too."""
    shutil.copytree(toy_source, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture(scope="session")
def three_patches(tmp_path_factory) -> Path:
    """A project with three of the patches: the same machinery, and runs that stay quick as the series grows."""
    root = tmp_path_factory.mktemp("three_patches")
    shutil.copytree(REPO / "upstream", root / "upstream")
    (root / "patches/support").mkdir(parents=True)
    (root / "patches/__init__.py").write_text(THREE_PATCHES)
    patches = ("local_rank_from_env", "reshape_topk", "configurable_gpus")
    for name in (*patches, "support/__init__", "support/gpu_list"):
        shutil.copy(REPO / f"patches/{name}.py", root / f"patches/{name}.py")
    return root


@pytest.fixture
def small_project(three_patches, tmp_path, monkeypatch) -> Path:
    """The root of a copy of it, which is the working directory too."""
    shutil.copytree(three_patches, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture(scope="session")
def pristine_build(three_patches, tmp_path_factory) -> Path:
    """What `apply` makes of it, written once: a build is the same bytes wherever it is made."""
    small, out = Project(three_patches), tmp_path_factory.mktemp("pristine") / "build"
    build.apply(small, build.plan(small, Request("standard")), out)
    return out


@pytest.fixture
def fresh(small_project, pristine_build) -> Path:
    """The root of a small project whose default build has been applied."""
    shutil.copytree(pristine_build, small_project / "build")
    return small_project


def patch_modules() -> dict:
    """What has been imported of `patches`."""
    return {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] == "patches"
    }


def forget_patches() -> None:
    """Have `patches` read anew, as a process of its own would."""
    for name in patch_modules():
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _same_patches():
    """Each test finds the modules of `patches` that its file has imported, whichever project the last one read."""
    before = patch_modules()
    yield
    forget_patches()
    sys.modules.update(before)


@pytest.fixture
def patcher(capsysbinary):
    """Runs the command line in this process."""

    def run(*argv) -> Result:
        forget_patches()
        capsysbinary.readouterr()
        try:
            code = cli.main([str(arg) for arg in argv])
        except SystemExit as ended:  # argparse: --help, and what it does not understand
            code = ended.code
        return Result(code, *capsysbinary.readouterr())

    return run


@pytest.fixture
def process():
    """Runs `python -m patcher`, or python with what `args` says, in a process of its own."""

    def run(*argv, args=("-m", "patcher"), cwd=None, **env) -> Result:
        done = subprocess.run(
            [sys.executable, *args, *map(str, argv)],
            cwd=cwd,
            env=environment(**env),
            capture_output=True,
            timeout=120,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def environment(**changes) -> dict[str, str]:
    """The environment of a process that can import `patcher`, wherever it runs; None takes a variable out."""
    env = {**os.environ, "PYTHONPATH": str(REPO), **changes}
    return {name: value for name, value in env.items() if value is not None}


def relock(root: Path) -> None:
    """Take the scripts in `upstream/`, whatever they are now, into the lock: a new upstream, not an edited one."""
    path = root / "upstream" / "lock.json"
    lock = json.loads(path.read_bytes())
    lock["files"] = {
        script.name: upstream.entry(script.read_bytes())
        for script in (root / "upstream").glob("*.py")
    }
    path.write_text(json.dumps(lock))


def apply_and_export(root: Path, series: str) -> None:
    """Build a project to build/ in it, and export its patches to out/."""
    common = ["--root", str(root), "--series", series]
    assert cli.main(["apply", "--out", str(root / "build"), *common]) == 0
    assert cli.main(["export", str(root / "out"), *common]) == 0


def tool(*command: str, cwd: Path, stdin: bytes = b"", **env) -> None:
    """Run another tool, as git, patch or quilt, that has to succeed; skip the test if it is not installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        command, cwd=cwd, input=stdin, env=environment(**GIT, **env), capture_output=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def replace(path: Path, old: bytes, new: bytes, count: int = -1) -> None:
    """Replace bytes in a file, and make sure that something was replaced."""
    before = path.read_bytes()
    assert old in before
    path.write_bytes(before.replace(old, new, count))


def tree(folder: Path) -> dict[str, tuple]:
    """Everything below `folder`: kind, mode and content by path."""
    return {
        path.relative_to(folder).as_posix(): (
            path.lstat().st_mode,
            os.readlink(path)
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` by its path there."""
    return {name: content for name, (_, content) in tree(folder).items() if content is not None}


def load(path: Path, name: str = "script"):
    """A training script as a module; needs torch."""
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ending(capsys, function, *args) -> str:
    """The line with which a call ends the run."""
    with pytest.raises(SystemExit) as ended:
        function(*args)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# Ring 3: real processes


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Ten classes with two images each to train on and two to validate."""
    return digits.write(tmp_path_factory.mktemp("data") / "digits", limit=2)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A checkpoint with upstream's four keys, of a model for the ten classes of `data`."""
    import torch
    import torchvision

    path, arch = tmp_path_factory.mktemp("weights") / "weights.pth.tar", "shufflenet_v2_x0_5"
    model = torchvision.models.get_model(arch, num_classes=10)
    torch.save(
        {"epoch": 1, "arch": arch, "state_dict": model.state_dict(), "best_acc1": 10.0}, path
    )
    return path


@pytest.fixture(scope="session")
def build_of(tmp_path_factory):
    """A function that gives the folder built with these arguments to `apply`."""
    folders = {}

    def build(*arguments):
        if arguments not in folders:
            folders[arguments] = tmp_path_factory.mktemp("built") / "build"
            command = [
                sys.executable,
                "-m",
                "patcher",
                "apply",
                "--out",
                str(folders[arguments]),
                *arguments,
            ]
            subprocess.run(command, cwd=REPO, check=True, stdout=subprocess.DEVNULL)
        return folders[arguments]

    return build


@pytest.fixture
def run(tmp_path):
    """A function that runs a user's command in an empty folder, on `gpus` pretended devices; None: on the CPU."""
    (tmp_path / "run").mkdir()

    def run(*command, gpus):
        log = tmp_path / "events"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if gpus is not None:  # else the CPU as it is
            stand_in = {
                "PYTHONPATH": REPO / "tests" / "stand_in",
                "FAKE_GPUS": gpus,
                "STAND_IN_LOG": log,
            }
            environment |= {name: str(value) for name, value in stand_in.items()}
        # A file per rank and stream: on one pipe the lines of two ranks run into each other.
        logs = tmp_path / "logs"
        split = (
            ["--redirects=3", f"--log-dir={logs}"]
            if command[: len(TORCHRUN)] == tuple(TORCHRUN)
            else []
        )
        command = (
            [sys.executable, *TORCHRUN, *split, *command[len(TORCHRUN) :]]
            if split
            else [sys.executable, *command]
        )
        command = list(map(str, command))
        done = subprocess.run(
            command,
            cwd=tmp_path / "run",
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        out, err = (
            [path.read_text() for path in sorted(logs.rglob(f"{name}.log"))]
            for name in ("stdout", "stderr")
        )
        return SimpleNamespace(
            status=done.returncode,
            outs=out or [done.stdout],  # by rank
            errs=err,
            err="".join([done.stderr, *err]),
            events=events,
            folder=tmp_path / "run",
        )

    return run
