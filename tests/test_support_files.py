"""`support.files`: files that are complete at every moment, and the output folder."""

import argparse
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from conftest import ending

from patches.support import files, owner


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One process in an empty folder, which has written nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setattr(owner, "_mine", None)
    for name, empty in (("_own", {}), ("sizes", {}), ("_slow", [])):
        monkeypatch.setattr(files, name, empty)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def write(path, content, previous=None):
    with files.atomic_write(path, previous) as temporary:
        Path(temporary).write_bytes(content)


def test_file_is_flushed_before_it_takes_its_place_and_its_folder_after(monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, call=call: (events.append(name), call(*args))
        )
    write("a", b"1")
    assert events == ["fsync", "replace", "fsync"]


def test_a_file_that_cannot_be_written_leaves_all_as_it_was(tmp_path, capsys):
    write("a", b"1", previous="b")
    write("a", b"2", previous="b")

    def fails():
        with files.atomic_write("a", "b") as temporary:
            Path(temporary).write_bytes(b"half")
            raise OSError(28, "No space left on device")

    line = ending(capsys, fails)
    assert line.startswith(f"train.py: error: cannot write {tmp_path.resolve()}/a (")
    assert line.endswith("No space left on device; what was there stays as it is")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"2", "b": b"1"}


def test_a_link_stays_a_link_and_the_mode_is_that_of_the_umask(tmp_path):
    (tmp_path / "disk").mkdir()
    os.symlink("disk/a", "a")
    old = os.umask(0o027)
    try:
        write("a", b"1")
    finally:
        os.umask(old)
    assert os.readlink("a") == "disk/a"
    assert stat.S_IMODE(os.stat("disk/a").st_mode) == 0o640


@pytest.mark.parametrize("linked", [True, False])
def test_the_best_copy_is_a_link_or_where_there_are_none_a_copy(linked, monkeypatch):
    if not linked:
        monkeypatch.setattr(
            os, "link", lambda *args: (_ for _ in ()).throw(OSError(95, "not supported"))
        )
    write("a", b"1")
    Path(owner.temporary_name("best")).write_bytes(
        b"of a process that had this number, and was killed"
    )
    files.link("a", "best")
    assert os.path.samefile("a", "best") == linked
    write("a", b"2")
    assert (Path("a").read_bytes(), Path("best").read_bytes()) == (b"2", b"1")
    assert sorted(os.listdir()) == ["a", "best"]


@pytest.mark.parametrize("other", ["pid", "container"])
def test_two_processes_that_write_one_file_do_not_meet(other, monkeypatch):
    """A1: each has a name of its own for what it writes, and both files are complete."""
    with files.atomic_write("a") as first:
        Path(first).write_bytes(b"1" * 5)
        with monkeypatch.context() as second_process:
            place, name, value = (
                (os, "getpid", lambda: 7) if other == "pid" else (owner, "_own", "0")
            )
            second_process.setattr(place, name, value)
            with files.atomic_write("a") as second:
                Path(second).write_bytes(b"22")
                assert sorted(os.listdir()) == sorted(map(os.path.basename, (first, second)))
        assert Path("a").read_bytes() == b"22"
    assert Path("a").read_bytes() == b"11111"
    assert os.listdir() == ["a"]


@pytest.mark.parametrize("content", [b'{"owner": "they"}', b""])
def test_job_that_is_not_the_owner_any_more_ends_and_replaces_nothing(
    content, tmp_path, monkeypatch, capsys
):
    """A2: it had stood still for so long that another one took its place."""
    write("a", b"1", previous="b")
    monkeypatch.setattr(owner, "_mine", {"owner": "we", "pid": os.getpid()})
    write("a", b"2", previous="b")  # a lock that somebody has deleted ends no job
    (tmp_path / owner.LOCK).write_bytes(content)
    line = ending(capsys, write, "a", b"3", "b")
    assert line.startswith(f"train.py: error: cannot write {tmp_path.resolve()}/a (")
    assert line.endswith("another job writes here now; what was there stays as it is")
    assert (Path("a").read_bytes(), Path("b").read_bytes()) == (b"2", b"1")
    assert sorted(os.listdir()) == ["a", "b", owner.LOCK]


def test_file_is_known_again_until_another_process_replaces_it():
    """A2: what the process wrote itself, or found at its start, is no other one's; a missing file
    neither.
    """
    assert files.is_own("a")
    write("a", b"1")
    assert files.is_own("a") and files.is_own(os.path.abspath("a"))
    Path("other").write_bytes(b"1")
    os.utime("other", ns=(os.stat("a").st_atime_ns, os.stat("a").st_mtime_ns))
    os.replace("other", "a")
    assert not files.is_own("a")
    files.adopt("a")
    assert files.is_own("a")


def test_slow_write_is_warned_of_once(tmp_path, monkeypatch, capsys):
    """A12: torchrun kills 30 s after a signal, so more than 15 s for a save is said, and what to
    do.
    """
    for seconds, lines in ((15, 0), (16, 1), (17, 0)):
        now = iter([0, seconds])
        monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda now=now: next(now)))
        write("a", b"1")
        err = capsys.readouterr().err
        assert len(err.splitlines()) == lines
        if lines:
            assert err.startswith(
                f"train.py: warning: writing {tmp_path.resolve()}/a took 16 s; torchrun kills"
            )
            assert "--shutdown-timeout" in err and "--save-every" in err


@pytest.mark.parametrize("mode", ["a", "a+"])
def test_lines_are_appended_all_or_none(mode, capsys):
    for number in range(2):
        with files.appended("log", mode, newline="") as file:
            file.write(f"{number}\r\n")

    def fails():
        with files.appended("log", mode, newline="") as file:
            file.write("half")
            raise OSError(28, "No space left on device")

    ending(capsys, fails)
    assert Path("log").read_bytes() == b"0\r\n1\r\n"
    assert os.listdir() == ["log"]


def append(line):
    with files.appended("log", "a") as file:
        file.write(line)


def test_length_of_what_is_appended_to_is_known():
    """B14: a checkpoint holds it, so that a resumed run can take off what came later."""
    append("1\n")
    assert files.sizes == {"log": 2}
    append("22\n")
    assert files.sizes == {"log": 5}


@pytest.mark.parametrize(
    "length, left, size",
    [
        (2, b"1\n", 2),
        (5, b"1\n22\n", 5),
        (9, b"1\n22\n", 5),
        (float("inf"), b"1\n22\n", 5),
        (0, b"", 0),
    ],
)
def test_file_is_cut_to_a_length_and_never_grows(length, left, size):
    """B14: a user may have shortened the file, or this run may be of a build that kept no length."""
    Path("log").write_bytes(b"1\n22\n")
    files.cut("log", length)
    assert (Path("log").read_bytes(), files.sizes) == (left, {"log": size})


def test_file_that_is_gone_has_the_length_0():
    """B14: a user may have taken the csv away; what comes then is a new one."""
    files.cut("log", 9)
    assert (os.listdir(), files.sizes) == ([], {"log": 0})


def test_what_killed_processes_had_begun_to_write_is_removed():
    """A1: under the names of a run only. A lock in making is that of a process which wants the
    folder too.
    """
    kept = [
        "a.tar",
        "a.tar.tmp",
        "b.node7-0a1b2c3d.12.tmp",
        "mine.tmp",
        "run.lock.node7-0a1b2c3d.12.tmp",
    ]
    for name in ("a.tar.node7-0a1b2c3d.12.tmp", "a.tar.x.tmp", *kept):
        Path(name).touch()
    files.remove_begun(["a.tar"])
    assert sorted(os.listdir()) == kept


def test_files_are_moved_into_a_folder_with_the_date_the_last_one_last(monkeypatch):
    """A8: nothing is deleted, and a run that is killed meanwhile finds what is left with its last
    file.
    """
    assert files.move_away(["a", "b", "c"]) is None
    assert os.listdir() == []
    Path("a").write_bytes(b"1")
    os.symlink("nowhere", "c")
    Path("mine").touch()
    moved, rename = [], os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: (moved.append(old), rename(old, new)))
    folder = files.move_away(["a", "b", "c"])
    assert folder.startswith("overwritten-20") and len(folder) == len("overwritten-20261202-101500")
    assert moved == ["a", "c"]
    assert sorted(os.listdir()) == ["mine", folder] and sorted(os.listdir(folder)) == ["a", "c"]


def settings(**more):
    return argparse.Namespace(
        **{"data": "d", "evaluate": False, "resume": None, "output_dir": "out", **more}
    )


def test_output_folder_is_made_and_paths_stay_what_they_were(tmp_path):
    args = settings(resume="old.pth.tar")
    assert files.enter_output_dir(args) is None
    assert (Path.cwd(), args.data, args.resume) == (
        tmp_path / "out",
        f"{tmp_path}/d",
        f"{tmp_path}/old.pth.tar",
    )
    os.chdir(tmp_path)
    args = settings(resume="auto")
    files.enter_output_dir(args)
    assert args.resume == "auto"


@pytest.mark.parametrize("given", [{}, {"evaluate": True}, {"resume": "auto"}])
def test_nothing_is_removed_from_a_folder_before_the_run_is_known_to_be_its_owner(given, tmp_path):
    """A1: a second command may be refused later, and the file is what the first one is writing."""
    (tmp_path / "out").mkdir()
    names = ["checkpoint.pth.tar.node7-0a1b2c3d.12.tmp", "checkpoint.pth.tar.tmp", "mine.tmp"]
    for name in names:
        (tmp_path / "out" / name).touch()
    files.enter_output_dir(settings(**given))
    assert sorted(os.listdir()) == names


def test_folder_is_not_written_to_by_an_evaluation(tmp_path, monkeypatch):
    """B12: not even to see if it could be."""
    monkeypatch.setattr(files.tempfile, "TemporaryFile", lambda **given: pytest.fail("written"))
    files.enter_output_dir(settings(evaluate=True))
    assert Path.cwd() == tmp_path / "out"


def test_output_folder_that_is_a_file_is_refused(capsys):
    Path("out").touch()
    line = ending(capsys, files.enter_output_dir, settings())
    assert line == "train.py: error: --output-dir out: cannot be written to: File exists"


def test_output_goes_to_the_working_directory_unless_a_folder_is_given():
    parser = argparse.ArgumentParser()
    files.add_options(parser)
    assert parser.parse_args([]).output_dir == "."
