"""`support.files`: files that are complete at every moment, and the output folder."""

import argparse
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import ending  # noqa: E402

from patches.support import files  # noqa: E402


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One process in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def write(path, content, **more):
    with files.atomic_write(path, **more) as temporary:
        Path(temporary).write_bytes(content)


def test_file_is_flushed_before_it_takes_its_place_and_its_folder_after(monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, call=call: (events.append(name), call(*args)))
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
        monkeypatch.setattr(os, "link", lambda *args: (_ for _ in ()).throw(OSError(95, "not supported")))
    write("a", b"1")
    Path("best.tmp").write_bytes(b"of a run that was killed")
    files.link("a", "best")
    assert os.path.samefile("a", "best") == linked
    write("a", b"2")
    assert (Path("a").read_bytes(), Path("best").read_bytes()) == (b"2", b"1")
    assert sorted(os.listdir()) == ["a", "best"]


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


def settings(**more):
    return argparse.Namespace(**{"data": "d", "evaluate": False, "resume": None, "output_dir": "out", **more})


def test_output_folder_is_made_and_paths_stay_what_they_were(tmp_path):
    args = settings(resume="old.pth.tar")
    assert files.enter_output_dir(args) is None
    assert (Path.cwd(), args.data, args.resume) == (
        tmp_path / "out",
        f"{tmp_path}/d",
        f"{tmp_path}/old.pth.tar",
    )
    os.chdir(tmp_path)
    (tmp_path / "out" / "checkpoint.pth.tar.tmp").write_bytes(b"half")
    (tmp_path / "out" / "mine.tmp").write_bytes(b"mine")
    args = settings(resume="auto")
    files.enter_output_dir(args)
    assert args.resume == "auto"
    assert os.listdir() == ["mine.tmp"]


@pytest.mark.parametrize("reader", ["evaluate", "rank"])
def test_a_process_that_writes_nothing_removes_nothing(reader, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint.pth.tar.tmp").write_bytes(b"of the run that is writing it")
    if reader == "rank":
        monkeypatch.setenv("RANK", "1")
    files.enter_output_dir(settings(evaluate=reader == "evaluate"))
    assert os.listdir() == ["checkpoint.pth.tar.tmp"]


def test_output_folder_that_is_a_file_is_refused(capsys):
    Path("out").touch()
    line = ending(capsys, files.enter_output_dir, settings())
    assert line == "train.py: error: --output-dir out: cannot be written to: File exists"


def test_output_goes_to_the_working_directory_unless_a_folder_is_given():
    parser = argparse.ArgumentParser()
    files.add_options(parser)
    assert parser.parse_args([]).output_dir == "."
