"""A project in a temporary folder, and two ways to run `patcher` on it."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from patcher import cli
from patcher.build import build, upstream
from patcher.build.project import Project, Request

# A shell lets its background jobs ignore Ctrl-C, nohup SIGHUP, and so would all that tests start.
# A signal that is handled here is not ignored there.
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("HUP", "TERM", "QUIT", "USR1", "USR2", "XCPU"):
    number = signal.Signals[f"SIG{name}"]
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

for name in [name for name in os.environ if name.startswith("GIT_")]:  # a hook's own repository
    del os.environ[name]

# Nobody's settings.
GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": "/"}
CACHES = shutil.ignore_patterns("__pycache__")
REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "examples"), str(REPO / "tests/patches")]
Project(REPO).all_series()  # reads `patches` before any test file does: later, it would do so anew
from jobs import build_of, command, data, fork, noise, run, server, shared, weights  # noqa: E402, F401


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
        shutil.copytree(REPO / name, root / name, ignore=CACHES)
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
    """A project with two small scripts; its series reach none, some and nearly all of `support`."""
    root = tmp_path_factory.mktemp("toy")
    shutil.copytree(REPO / "tests/toy", root, ignore=CACHES, dirs_exist_ok=True)
    original = {"repository": "https://example.org", "commit": "1a2b3c4"}
    (root / "upstream/lock.json").write_text(json.dumps({"original": original}))
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
    """A project with three of the patches: it stays quick as the series grows."""
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
    names = [name for name in sys.modules if name.partition(".")[0] == "patches"]
    return {name: sys.modules[name] for name in names}


def forget_patches() -> None:
    """Have `patches` read again, as a process of its own would."""
    for name in patch_modules():
        del sys.modules[name]


@pytest.fixture(autouse=True, scope="session")
def collected_patches():
    """What the test files have imported of `patches`."""
    return patch_modules()


@pytest.fixture(autouse=True)
def _same_patches(collected_patches):
    """Each test finds that, whichever project a test or a fixture before it has read."""
    forget_patches()
    sys.modules.update(collected_patches)


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
        command = [sys.executable, *args, *map(str, argv)]
        how = {"cwd": cwd, "env": environment(**env), "capture_output": True, "timeout": 120}
        done = subprocess.run(command, **how)
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def environment(**changes) -> dict[str, str]:
    """That of a process that can import `patcher` wherever it runs; None takes a variable out."""
    env = {**os.environ, "PYTHONPATH": str(REPO), **changes}
    return {name: value for name, value in env.items() if value is not None}


def relock(root: Path) -> None:
    """Take the scripts in `upstream/` as they are into the lock: as if they had arrived so."""
    path = root / "upstream" / "lock.json"
    lock = json.loads(path.read_bytes())
    scripts = (root / "upstream").glob("*.py")
    lock["files"] = {script.name: upstream.entry(script.read_bytes()) for script in scripts}
    path.write_text(json.dumps(lock))


def apply_and_export(root: Path, series: str) -> None:
    """Build a project to build/ in it, and export its patches to out/."""
    common = ["--root", str(root), "--series", series]
    assert cli.main(["apply", "--out", str(root / "build"), *common]) == 0
    assert cli.main(["export", str(root / "out"), *common]) == 0


def tool(*command: str, cwd: Path, stdin: bytes = b"", **env) -> None:
    """Run a tool such as git or quilt, which has to succeed; without it the test is skipped."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    env = environment(**GIT, **env)
    done = subprocess.run(command, cwd=cwd, input=stdin, env=env, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def replace(path: Path, old: bytes, new: bytes, count: int = -1) -> None:
    """Replace bytes in a file, and make sure that something was replaced."""
    before = path.read_bytes()
    assert old in before
    path.write_bytes(before.replace(old, new, count))


def tree(folder: Path) -> dict[str, tuple]:
    """Everything below `folder`: kind, mode and content by path."""

    def content(path: Path):
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return {
        path.relative_to(folder).as_posix(): (path.lstat().st_mode, content(path))
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


# A patch's proof in tests/patches: `serves` passes with the whole series, too


def pytest_configure(config):
    config.addinivalue_line("python_functions", "serves")


if importlib.util.find_spec("torch") is None:
    collect_ignore = ["patches"]


@pytest.fixture
def built_scripts(request, tmp_path):
    """Both scripts of the default series, or of one that has the patch under test, as modules."""
    from builds import loaded, stand_ins
    from rendering import DEFAULT, SERIES, results_in

    name = request.module.__name__.removeprefix("test_")
    series = [series for series in (DEFAULT, *SERIES) if name in SERIES[series]]
    assert series, f"{name} is in no series of patches/__init__.py"
    with loaded(tmp_path, results_in(series[0])) as scripts, stand_ins():
        yield scripts


@pytest.fixture
def distributed(built_scripts):
    return built_scripts[0]


@pytest.fixture
def dataparallel(built_scripts):
    return built_scripts[1]
