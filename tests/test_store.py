"""All of the files, or none: whatever fails or is killed in between."""

import contextlib
import errno
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import environment, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patcher.build import build, manifest, store
from patcher.build.project import Project, Request
from patcher.core.problem import Problem, Problems

SERIES = ("plain", "more", "less")
UNDO = "build/.patcher-undo"


@pytest.fixture
def project(toy):
    return toy


@pytest.fixture(scope="module")
def plans(toy_source) -> dict:
    """The plan of each series, made once: it is the same in every copy of the project."""
    return {series: build.plan(Project(toy_source), Request(series)) for series in SERIES}


@pytest.fixture
def write(project, plans):
    """Writes a series to build/."""
    return lambda series, overwrite=False: build.apply(
        Project(project), plans[series], Path("build"), overwrite
    )


def expected(plan) -> dict[str, bytes | None]:
    """The files of a plan, and its folder."""
    return {**plan.files, **({"support": None} if "support/__init__.py" in plan.files else {})}


def contents(folder: Path) -> dict[str, bytes | None]:
    return {name: content for name, (_, content) in tree(folder).items()}


def failing_from(monkeypatch, name: str, nth: int, error: int, once: bool = True) -> list:
    """Make the n-th call of `os.<name>` fail (from 1), or all from it on; return the calls."""
    calls, real = [], getattr(os, name)

    def call(*args, **kwargs):
        calls.append(args)
        if len(calls) == nth or (len(calls) > nth and not once):
            raise OSError(error, os.strerror(error), str(args[0]))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)
    return calls


def files_of(folder: Path) -> dict[str, bytes]:
    """What is in a build, but for what a later run is to drop."""
    return {
        n: c for n, c in contents(folder).items() if c is not None and not n.startswith(".patcher-")
    }


def number_of_calls(name: str, write, monkeypatch, old: str, new: str) -> int:
    """How often a write that changes all files calls `os.<name>`."""
    write(old)
    with monkeypatch.context() as patch:
        calls = failing_from(patch, name, 0, errno.EIO)
        write(new)
    write(old)
    return len(calls)


# Errors


@pytest.mark.parametrize("old, new", [("plain", "more"), ("more", "plain"), ("more", "less")])
@pytest.mark.parametrize(
    "name", ["replace", "rename", "open", "fsync", "link", "mkdir", "chmod", "unlink", "rmdir"]
)
def test_any_one_failing_call_leaves_the_old_state_or_reaches_the_new_one(
    project, plans, write, monkeypatch, name, old, new
):
    count = number_of_calls(name, write, monkeypatch, old, new)
    before, failures = tree(project / "build"), 0
    for nth in range(1, count + 1):
        with monkeypatch.context() as patch:
            failing_from(patch, name, nth, errno.EIO)
            try:
                write(new)
            except Problem as raised:
                problem = raised
            else:
                problem = None
            if problem:
                failures += 1
                assert tree(project / "build") == before, f"{name} number {nth}"
                assert "cannot write: Input/output error" in problem.message
                assert problem.code == 2
            else:  # a link becomes a copy; not every folder can be synced; leftovers go later
                assert files_of(project / "build") == plans[new].files, f"{name} number {nth}"
        write(new)
        assert contents(project / "build") == expected(plans[new])
        write(old)
        assert tree(project / "build") == before
    assert count > 0 or name in ("mkdir", "chmod")
    assert failures == count or name in ("link", "open", "fsync", "mkdir", "unlink", "rmdir")


@pytest.mark.parametrize("name", ["replace", "rename", "open", "fsync", "mkdir"])
def test_failed_first_build_leaves_no_folder(project, write, monkeypatch, name):
    with monkeypatch.context() as patch:
        calls = failing_from(patch, name, 0, errno.EIO)
        write("plain")
    for path in (project / "build").iterdir():
        path.unlink()
    (project / "build").rmdir()
    failures = 0
    for nth in range(1, len(calls) + 1):
        with monkeypatch.context() as patch:
            failing_from(patch, name, nth, errno.ENOSPC)
            with contextlib.suppress(Problem):
                write("more")
                continue
        failures += 1
        assert not (project / "build").exists(), f"{name} number {nth}"
    assert failures


def test_file_system_without_hard_links_is_no_obstacle(project, plans, write, monkeypatch):
    write("plain")
    before = tree(project / "build")
    failing_from(monkeypatch, "link", 1, errno.EPERM, once=False)
    with monkeypatch.context() as patch:
        failing_from(patch, "replace", 2, errno.EIO)
        with pytest.raises(Problem):
            write("more")
    assert tree(project / "build") == before
    write("more")
    assert contents(project / "build") == expected(plans["more"])


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_disk_that_stays_broken_is_not_said_to_be_as_it_was(
    project, plans, write, patcher, monkeypatch, nth
):
    # Nothing can be put back then: the state is on disk, `check` says so, the next run repairs it.
    write("plain")
    before = tree(project / "build")
    with monkeypatch.context() as patch:
        failing_from(patch, "replace", nth, errno.EROFS, once=False)
        result = patcher("apply", "--series", "more")
    assert result.code == 2
    assert "Traceback" not in result.err
    said = result.out + result.err
    if tree(project / "build") != before:
        assert "is as it was" not in said
        assert "an apply was interrupted" in patcher("check", "--series", "more").out
    assert patcher("apply", "--series", "more").code == 0
    assert contents(project / "build") == expected(plans["more"])


def test_interrupt_from_the_keyboard_puts_back_what_was_there(project, write, monkeypatch):
    write("plain")
    before = tree(project / "build")
    real, calls = os.replace, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write("more")
    assert tree(project / "build") == before


@pytest.fixture
def small(project):
    """Mounts a small file system at build/; the mount is undone whatever happens."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    target = project / "build"
    target.mkdir()

    def mount(options: str, again: bool = False):
        arguments = ["-o", ("remount," if again else "") + options]
        command = (
            ["mount", *arguments, str(target)]
            if again
            else ["mount", "-t", "tmpfs", *arguments, "t", str(target)]
        )
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no mount here: {done.stderr.strip()}")

    yield mount
    while os.path.ismount(target):
        subprocess.run(["umount", str(target)], check=True)


@pytest.mark.parametrize("spare", [0, 1, 3, 5, 6])
def test_full_disk_leaves_the_build_as_it_was(project, plans, write, small, spare):
    page = os.sysconf("SC_PAGESIZE")
    small("size=1m")
    write("plain")
    used = os.statvfs("build")
    taken = (used.f_blocks - used.f_bfree) * used.f_frsize
    before = tree(project / "build")
    small(f"size={taken + spare * page}", again=True)
    with pytest.raises(Problem) as caught:
        write("more")
    assert os.strerror(errno.ENOSPC) in caught.value.message
    assert tree(project / "build") == before
    small("size=1m", again=True)
    write("more")
    assert contents(project / "build") == expected(plans["more"])


def test_read_only_disk_leaves_the_build_as_it_was_and_can_be_checked(
    project, plans, write, small, patcher
):
    small("size=1m")
    write("plain")
    before = tree(project / "build")
    small("ro", again=True)
    result = patcher("apply", "--series", "more")
    assert result.code == 2
    assert os.strerror(errno.EROFS) in result.out + result.err
    assert tree(project / "build") == before
    assert patcher("check", "--series", "plain").code == 0
    small("rw", again=True)
    assert patcher("apply", "--series", "more").code == 0
    assert contents(project / "build") == expected(plans["more"])


@pytest.fixture
def immutable():
    """Makes a path immutable, for root too; that is undone whatever happens."""
    paths = []

    def make(path):
        done = subprocess.run(["chattr", "+i", str(path)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no chattr here: {done.stderr.strip()}")
        paths.append(path)

    yield make
    for path in paths:
        subprocess.run(["chattr", "-i", str(path)], check=True)


@pytest.mark.parametrize("name", ["two.py", "manifest.json", "."])
def test_immutable_file_is_named_and_leaves_the_build_as_it_was(project, write, immutable, name):
    """T8: the file at fault, what it may be, and none of our own folders."""
    write("plain")
    before = tree(project / "build")
    immutable(project / "build" / name)
    with pytest.raises(Problem) as caught:
        write("more")
    assert caught.value.file == ("build" if name == "." else f"build/{name}")
    assert caught.value.message == f"cannot write: {os.strerror(errno.EPERM)}"
    assert caught.value.hint.startswith("Is it immutable (`lsattr` tells), or another user's? ")
    assert tree(project / "build") == before


@pytest.mark.parametrize("call", ["replace", "rename", "open", "mkdir"])
def test_failure_names_a_file_of_the_build(project, write, monkeypatch, call):
    """T8: whatever call fails, at whatever path."""
    write("plain")
    before, real = files_of(project / "build"), getattr(os, call)

    def failing(path, *rest, **options):
        if ".patcher-new" in str(path) or (call == "rename" and ".patcher-drop" in str(path)):
            targets = [None, str(rest[0])] if call in ("replace", "rename") else []
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path), *targets)
        return real(path, *rest, **options)

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(Problem) as caught:
        write("more")
    monkeypatch.undo()
    assert ".patcher" not in caught.value.file
    assert caught.value.file == "build" or (project / caught.value.file).is_file()
    assert files_of(project / "build") == before


@pytest.mark.parametrize("command", ["apply", "check", "diff"])
@pytest.mark.parametrize("out", ["afile", "afile/build"])
def test_file_in_place_of_the_folder_is_an_error_and_no_crash(project, patcher, command, out):
    (project / "afile").write_text("mine\n")
    result = patcher(command, "--out", out)
    assert result.code in (1, 2)
    assert "afile" in result.out + result.err
    assert "Traceback" not in result.err
    assert (project / "afile").read_text() == "mine\n"


def test_link_to_a_folder_may_stand_for_the_folder(project, patcher, plans):
    (project / "elsewhere").mkdir()
    (project / "build").symlink_to("elsewhere")
    assert patcher("apply", "--series", "plain").code == 0
    assert (project / "build").is_symlink()
    assert contents(project / "elsewhere") == expected(plans["plain"])


# Kills

WRITER = """
import json, os, signal, sys
from pathlib import Path
from patcher.build import build
from patcher.build.project import Project, Request

plans = [
    build.Plan(Request(series), [], [], [], {name: text.encode() for name, text in files.items()})
    for series, files in json.loads(Path(sys.argv[4]).read_bytes()).items()
]
name, when, number = sys.argv[1:4]
if name:
    real, calls = getattr(os, name), []

    def call(*args, **kwargs):
        calls.append(args)
        if len(calls) == int(number) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if len(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, name, call)
print("ready", flush=True)
while True:
    for plan in plans:
        build.apply(Project(Path.cwd()), plan, Path("build"))
    if name:
        break
"""


@pytest.fixture
def writer(project, plans, tmp_path):
    """Starts a process that writes `more` and `plain` in turn, or until its n-th call of a
    function.
    """
    turns = {series: plans[series] for series in ("more", "plain")}

    @contextlib.contextmanager
    def start(name="", when="", number=0, turns=turns):
        files = {
            series: {n: c.decode() for n, c in plan.files.items()} for series, plan in turns.items()
        }
        (tmp_path / "plans.json").write_text(
            json.dumps(files)
        )  # so that it need not import LibCST and render
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, name, when, str(number), str(tmp_path / "plans.json")],
            cwd=project,
            env=environment(),
            stdout=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    return start


def settled(project: Path, plans, patcher) -> str:
    """The series that build/ holds in full after a kill, or "interrupted"; else a failure.

    `check` has to say the same, and must not call a mixture fine.
    """
    whole = [series for series in SERIES if files_of(project / "build") == plans[series].files]
    if (project / UNDO).exists():
        for series in SERIES:
            result = patcher("check", "--series", series)
            assert result.code == 1
            assert "an apply was interrupted" in result.out
        return "interrupted"
    assert len(whole) == 1, sorted(contents(project / "build"))
    assert patcher("check", "--series", whole[0]).code == 0
    return whole[0]


def repaired(project: Path, plans, patcher, series: str) -> None:
    result = patcher("apply", "--series", series)
    assert result.code == 0, result
    assert patcher("check", "--series", series).code == 0
    if "nothing to do" not in result.out:
        assert contents(project / "build") == expected(plans[series])
    # A run that has nothing to do does not look for what a killed one left lying.
    assert files_of(project / "build") == plans[series].files


def test_kill_at_any_moment_leaves_a_whole_build_or_one_that_says_so(
    project, plans, write, patcher, writer
):
    write("plain")
    moments = random.Random(20240815)
    for number in range(25):
        with writer() as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        settled(project, plans, patcher)
        repaired(project, plans, patcher, SERIES[number % 2])


STEPS = [
    *(("replace", when, number) for number in (1, 2, 3) for when in ("before", "after")),
    *(("rename", when, number) for number in (1, 2) for when in ("before", "after")),
    ("link", "after", 2),
    ("mkdir", "after", 2),
    ("fsync", "before", 2),
]


@pytest.mark.parametrize("name, when, number", STEPS)
def test_kill_between_two_steps_is_repaired_by_either_series(
    project, plans, write, patcher, writer, name, when, number
):
    write("plain")
    with writer(name, when, number) as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    state = settled(project, plans, patcher)
    committed = (name, when, number) == ("rename", "after", 2)
    replacing = name == "replace" or (name, when, number) in [
        ("rename", "after", 1),
        ("rename", "before", 2),
    ]
    assert state == ("more" if committed else "interrupted" if replacing else "plain")
    repaired(project, plans, patcher, "plain" if number % 2 else "more")


def test_kill_between_renames_of_a_first_build_is_repaired(project, plans, patcher, writer):
    with writer("replace", "after", 2) as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert "an apply was interrupted" in patcher("check").out
    assert patcher("check").code == 1
    repaired(project, plans, patcher, "plain")


@pytest.mark.parametrize(
    "name, number", [("replace", 1), ("replace", 2), ("replace", 3), ("rmdir", 1)]
)
def test_kill_in_the_middle_of_a_repair_is_repaired_too(
    project, plans, write, patcher, writer, name, number
):
    write("plain")
    for step in [("replace", "before", 3), (name, "before", number)]:
        with writer(*step) as process:
            assert process.wait(timeout=60) == -signal.SIGKILL
        assert settled(project, plans, patcher) == "interrupted"
    repaired(project, plans, patcher, "more")


def test_repair_puts_the_old_files_back_even_if_the_new_ones_are_then_refused(
    project, write, patcher, writer
):
    write("plain")
    before = contents(project / "build")
    with writer("replace", "after", 2) as process:
        process.wait(timeout=60)
    # Not of the interrupted write: somebody's own file, which stands in the way of the next one.
    (project / "build/.patcher-undo/kept-two.py").write_bytes(b"mine\n")
    result = patcher("apply", "--series", "more")
    assert result.code == 1
    assert "build/two.py" in result.out
    assert contents(project / "build") == {**before, "two.py": b"mine\n"}


def test_leftovers_of_a_kill_do_not_outlive_the_next_run_that_writes(
    project, plans, write, patcher
):
    write("plain")
    for name in (".patcher-new", ".patcher-drop"):
        (project / "build" / name).mkdir()
        (project / "build" / name / "one.py").write_text("half")
    assert patcher("check", "--series", "plain").code == 0
    write("more")
    assert contents(project / "build") == expected(plans["more"])


class Killed(BaseException):
    """Stands for the end of the process: whoever catches it can do nothing any more."""


@pytest.fixture
def killed(monkeypatch):
    """Calls a function, kills it before its n-th call that changes the disk, and counts those."""

    def killed(n: int, function) -> int:
        made = 0

        def mortal(real):
            def call(*args, **kwargs):
                nonlocal made
                made += 1
                if 0 < n <= made:
                    raise Killed
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "rename", "unlink", "rmdir", "link", "mkdir", "open", "chmod"):
                patch.setattr(os, name, mortal(getattr(os, name)))
            with contextlib.suppress(Killed):
                function()
        return made

    return killed


@pytest.mark.parametrize(
    "old, new", [("plain", "more"), ("more", "plain"), ("more", "less"), (None, "more")]
)
def test_kill_before_any_call_leaves_one_of_the_two_builds_or_says_so(
    project, plans, write, killed, old, new
):
    empty = plans["plain"]._replace(files={})
    states = {name: plans[name] if name else empty for name in (old, new)}
    number, seen = 0, set()
    while True:
        number += 1
        shutil.rmtree("build", ignore_errors=True)
        if old:
            write(old)
        if killed(number, lambda: write(new)) < number:
            break
        whole = [name for name, plan in states.items() if files_of(project / "build") == plan.files]
        seen.add("interrupted" if (project / UNDO).exists() else whole[0])
        write((old or new, new)[number % 2])  # the next run repairs it, whatever it is to write
        assert contents(project / "build") == expected(plans[(old or new, new)[number % 2]]), number
    assert number > 20
    assert seen == {old, new, "interrupted"}


@pytest.mark.parametrize("seed", range(20))
def test_kills_in_a_row_do_not_add_up(project, plans, write, killed, seed):
    moments = random.Random(seed)
    for _ in range(5):
        series = moments.choice(SERIES)
        killed(moments.randint(1, 60), functools.partial(write, series))
    before = files_of(project / "build") if not (project / UNDO).exists() else None
    assert before in [None, {}, *(plan.files for plan in plans.values())]
    series = moments.choice(SERIES)
    write(series)
    assert contents(project / "build") == expected(plans[series])


# Folders


@pytest.mark.parametrize("series", ["plain", "less"])
def test_folder_goes_with_its_last_file_and_what_python_made_of_them(project, plans, write, series):
    write("more")
    (project / "build/support/__pycache__").mkdir()
    (project / "build/support/__pycache__/base.cpython-311.pyc").write_bytes(b"")
    write(series)
    files = contents(project / "build")
    kept = {n: c for n, c in files.items() if "__pycache__" not in n}
    assert kept == expected(plans[series])
    assert (kept == files) == (series == "plain")


@pytest.mark.parametrize("name", ["support/mine.py", "support/__pycache__", "support/data/x"])
def test_folder_with_something_else_in_it_stays(project, plans, write, name):
    write("more")
    (project / "build" / name).parent.mkdir(exist_ok=True)
    (project / "build" / name).write_text(
        "mine"
    )  # not of ours, even if it is called like a folder of Python's
    write("plain")
    files = contents(project / "build")
    assert files.pop(name) == b"mine"
    assert {n: c for n, c in files.items() if c is not None} == plans["plain"].files
    write("more")
    assert (project / "build" / name).read_text() == "mine"


def test_folder_that_was_there_before_stays_after_a_failure(project, write, monkeypatch):
    (project / "build/support").mkdir(parents=True)
    with monkeypatch.context() as patch:
        failing_from(patch, "replace", 5, errno.EIO)
        with pytest.raises(Problem):
            write("more")
    assert contents(project / "build") == {"support": None}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "old, new", [(None, "more"), ("plain", "more"), ("more", "plain"), ("more", "less")]
)
@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_stands_in_place_of_the_folder_is_refused_and_stays(
    project, write, kind, old, new, overwrite
):
    (project / "build").mkdir()
    (project / "elsewhere").mkdir()
    if old:
        write(old)
    if (project / "build/support").exists():
        (project / "build/support").rename(project / "elsewhere/support")
    if kind == "file":
        (project / "build/support").write_text("mine")
    else:
        (project / "build/support").symlink_to(
            project / "elsewhere" / ("support" if kind == "link" else "nowhere")
        )
        (project / "elsewhere/support").mkdir(exist_ok=True)
    before = tree(project)
    with pytest.raises(Problems) as caught:
        write(new, overwrite)
    (problem,) = caught.value.problems
    found = "a file" if kind == "file" else "a symbolic link"
    assert str(problem) == f"build/support: expected a folder, found {found}"
    assert tree(project) == before


def test_file_in_place_of_a_folder_does_not_matter_to_a_build_without_one(project, plans, write):
    (project / "build").mkdir()
    (project / "build/support").write_text("mine")
    write("plain")
    assert contents(project / "build") == {**plans["plain"].files, "support": b"mine"}


names = st.lists(
    st.sampled_from(["a", "b%2Fc", "d/a", "d/b", "d/e/f", "kept-a", "g h/ä"]), unique=True
)


@given(old=names, new=names, end=st.integers(0, 40))
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_names_are_written_and_removed(tmp_path, killed, old, new, end):
    out, files = tmp_path / "out", {name: name.encode() for name in new}
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    store.write(out, dict.fromkeys(old, b"old"), {})
    changes = {**dict.fromkeys(old), **files}
    killed(end, lambda: store.write(out, changes, {}))
    store.write(out, changes, {})
    assert {
        name: content for name, content in contents(out).items() if content is not None
    } == files
    folders = {parent.as_posix() for name in new for parent in Path(name).parents} - {"."}
    assert {name for name, content in contents(out).items() if content is None} == folders


def test_folder_that_is_lost_after_a_kill_comes_back(project, plans, write, killed):
    write("more")
    number = 0
    while not (project / UNDO).exists():
        number += 1
        killed(number, lambda: write("plain"))
    shutil.rmtree("build/support")
    store.repair(Path("build"))
    assert contents(project / "build").keys() >= plans["more"].files.keys()


# Removals


@pytest.fixture
def less(plans):
    """A plan of a build without two.py, which `write` has to remove."""
    files = {name: content for name, content in plans["plain"].files.items() if name == "one.py"}
    written = json.loads(plans["plain"].files["manifest.json"])
    outputs = {name: digest for name, digest in written["outputs"].items() if name in files}
    data = {key: value for key, value in written.items() if key != "sha256"}
    files["manifest.json"] = manifest.serialise({**data, "outputs": outputs})
    return plans["plain"]._replace(files=files)


@pytest.mark.parametrize("name", ["replace", "rename", "unlink"])
def test_failed_removal_is_undone(project, plans, write, less, monkeypatch, name):
    write("plain")
    before = tree(project / "build")
    nth = 0
    while True:
        nth += 1
        with monkeypatch.context() as patch:
            calls = failing_from(patch, name, nth, errno.EIO)
            try:
                build.apply(Project(project), less, Path("build"))
            except Problem:
                assert tree(project / "build") == before, f"{name} number {nth}"
            if len(calls) < nth:
                break
        write("plain", overwrite=True)
        assert tree(project / "build") == before
    assert nth > 1
    assert contents(project / "build") == expected(less)


@pytest.mark.parametrize("when, number", [("before", 1), ("after", 1), ("before", 2), ("after", 2)])
def test_killed_removal_is_completed_by_the_next_run(project, write, less, writer, when, number):
    write("plain")
    with writer("rename", when, number, {"less": less}) as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    build.apply(Project(project), less, Path("build"))
    assert contents(project / "build") == expected(less)


# Several at once


def test_applies_at_the_same_time_end_in_one_of_their_builds(project, plans, patcher):
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "patcher", "apply", "--series", SERIES[number % 2]],
            cwd=project,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(8)
    ]
    for process in processes:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
    series = json.loads((project / "build/manifest.json").read_bytes())["series"]
    assert contents(project / "build") == expected(plans[series])
    assert patcher("check", "--series", series).code == 0


def test_run_waits_for_the_one_that_holds_the_folder(project, plans, write):
    write("plain")
    process = None
    with store._locked(project / "build"):
        process = subprocess.Popen(
            [sys.executable, "-m", "patcher", "apply", "--series", "more"],
            cwd=project,
            env=environment(),
        )
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        assert contents(project / "build") == expected(plans["plain"])
    assert process.wait(timeout=60) == 0
    assert contents(project / "build") == expected(plans["more"])
