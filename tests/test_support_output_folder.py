"""`support.output_folder`: which files belong to a run, and nothing of another one is replaced."""

import argparse
import os
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tiny_run import begin_again, net, new_process, settings, state_of  # noqa: E402

from patches.support import files, output_folder, owner  # noqa: E402

NAMES = LAST, PREVIOUS, BEST = (
    "checkpoint.pth.tar",
    "checkpoint_previous.pth.tar",
    "model_best.pth.tar",
)
CSV, METRICS, LIST = "dataparallel.csv", "metrics.jsonl", "skipped_images.txt"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)


def progress(name, epoch, step, run="r", **more):
    torch.save(state_of(net(), epoch=epoch, step=step, run=run, **more), name)


def flip(name):
    """Change one byte of a tensor, which torch itself does not notice."""
    content = Path(name).read_bytes()
    with zipfile.ZipFile(name) as archive:
        entry = next(info for info in archive.infolist() if "/data/0" in info.filename)
    at = content.index(torch.full((4,), 0.5).numpy().tobytes(), entry.header_offset)
    Path(name).write_bytes(content[:at] + b"\x01" + content[at + 1 :])
    torch.load(name, weights_only=True)


def take(**given):
    return output_folder.take(net(), settings(**given))


def contents():
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


# Which checkpoint


def test_the_newest_whole_checkpoint_of_the_run_is_found():
    assert output_folder.newest() == (None, [])
    progress(LAST, 3, 2)
    progress(PREVIOUS, 3, 1)
    progress(BEST, 4, 0)  # killed between the best copy and the checkpoint
    assert output_folder.newest() == (BEST, [])
    progress(BEST, 90, 0, run="another")
    assert output_folder.newest() == (LAST, [])
    flip(LAST)
    path, broken = output_folder.newest()
    assert (path, broken) == (PREVIOUS, [f"{LAST}: cannot be read: a checksum does not fit"])


@pytest.mark.parametrize("broken", ["cut", "flipped"])
def test_resume_auto_goes_on_from_the_previous_one_and_says_so(broken, capsys, monkeypatch):
    progress(LAST, 3, 2)
    progress(PREVIOUS, 3, 1)
    Path(LAST).write_bytes(Path(LAST).read_bytes()[:500]) if broken == "cut" else flip(LAST)
    assert take(resume="auto") == (PREVIOUS, None)
    assert capsys.readouterr().err.startswith(f"train.py: {LAST}: cannot be read: ")
    assert not os.path.samefile(LAST, PREVIOUS)  # the run may still be refused
    output_folder.begin(PREVIOUS, {})
    assert os.path.samefile(
        LAST, PREVIOUS
    )  # which is the newest now, and not what the next save puts aside
    begin_again(monkeypatch)
    flip(LAST)
    path, problem = take(resume="auto")
    assert (path, problem) == (None, f"--resume auto: no checkpoint in {os.getcwd()} is whole")


def test_resume_auto_starts_from_the_beginning_if_there_is_nothing(tmp_path, capsys):
    assert take(resume="auto") == (None, None)
    words = f"--resume auto: no checkpoint in {tmp_path}, starting from the beginning\n"
    assert capsys.readouterr().out == words


def test_disk_without_room_for_the_checkpoints_is_refused(monkeypatch):
    free = {"free": 256}  # 8 numbers of 4 bytes, and as many of the optimizer, four times
    monkeypatch.setattr("shutil.disk_usage", lambda path: argparse.Namespace(**free))
    model = torch.nn.Linear(1, 4)
    assert output_folder.lack_of_room(model, None) is None
    free["free"] = 190
    problem = output_folder.lack_of_room(model, None)
    assert problem.endswith(
        "0.0 MB free, and checkpoints take up to 0.0 MB; choose another --output-dir"
    )
    Path(LAST).write_bytes(bytes(66))  # which it will replace
    os.link(LAST, BEST)
    assert output_folder.lack_of_room(model, LAST) is None
    assert (
        output_folder.lack_of_room(model, None) == problem
    )  # a new run keeps them, in a folder of their own


# Whose folder


@pytest.mark.parametrize(
    "goes_on", [LAST, "link/" + LAST, "../out/mine", "latest", "../elsewhere/latest"]
)
def test_checkpoint_of_the_folder_may_be_resumed_however_it_is_named(
    goes_on, tmp_path, monkeypatch
):
    """A7: a file in the folder is the run's own, also if it is a link to another disk, or is named
    by a link.
    """
    for name in ("out", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "out")
    for name in (LAST, "mine", "../elsewhere/file"):
        progress(name, 3, 2)
    os.symlink(".", "link")
    os.symlink("../elsewhere/file", "latest")
    os.symlink("../out/" + LAST, "../elsewhere/latest")
    for path in (goes_on, os.path.abspath(goes_on)):
        assert output_folder.refusal(settings(resume=path)) is None


@pytest.mark.parametrize("other", [None, "../elsewhere/file", "link/file"])
@pytest.mark.parametrize("there", NAMES)
def test_checkpoint_of_another_run_is_not_replaced_unasked(there, other, tmp_path, monkeypatch):
    """A7: neither by a new run nor by one that goes on from another folder's checkpoint."""
    for name in ("out", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "out")
    os.symlink("../elsewhere", "link")
    Path("../elsewhere/file").touch()
    given = {"resume": other and os.path.abspath(other)}
    assert output_folder.refusal(settings(**given)) is None
    Path(there).touch()
    assert output_folder.refusal(settings(**given)) == (
        f"{tmp_path}/out/{there} is there already, and would be replaced: go on from it with --resume auto, "
        "write elsewhere with --output-dir, or allow it with --overwrite"
    )
    for allowed in ({"overwrite": True}, {"evaluate": True}):
        assert output_folder.refusal(settings(**given, **allowed)) is None
    assert output_folder.refusal(settings(resume="auto")) is None


def test_checkpoint_that_came_after_the_first_look_is_not_replaced_either():
    """A2: another job may have begun and ended while this one was loading its model."""
    assert output_folder.refusal(settings()) is None
    Path(LAST).write_bytes(b"1")
    path, problem = take()
    assert path is None and f"{LAST} is there already, and would be replaced" in problem
    assert contents()[LAST] == b"1"


def test_folder_of_a_running_job_is_refused_and_nothing_in_it_changes(monkeypatch):
    """A2: whatever is asked for; and A1: the refused command removes and moves nothing."""
    progress(LAST, 3, 2)
    Path(f"{LAST}.node7-0a1b2c3d.12.tmp").write_bytes(b"what the first is writing")
    Path(CSV).write_bytes(b"1,2\n")
    owner.take()
    monkeypatch.setattr(owner, "_mine", None)
    before = contents()
    for given in ({}, {"resume": "auto"}, {"overwrite": True}, {"resume": LAST}):
        path, problem = take(**given)
        assert path is None and problem.startswith(f"{os.getcwd()}: another job writes here since ")
        assert contents() == before


def test_folder_that_cannot_be_locked_is_one_line(monkeypatch, tmp_path):
    """A2: for example because the disk is full."""

    def full(me):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, "written", full)
    assert take() == (None, f"{tmp_path}: cannot be locked for this job: No space left on device")


@pytest.mark.parametrize(
    "given", [{"resume": "auto"}, {"resume": LAST}, {"pretrained": True}], ids=str
)
def test_evaluation_only_reads(given, monkeypatch):
    """B12: it may be in the folder of a running job, and of one that was killed."""
    monkeypatch.setattr(output_folder, "why_wrong_head", lambda args: None)
    progress(LAST, 3, 2)
    for name in (CSV, LIST, f"{LAST}.node7-0a1b2c3d.12.tmp"):
        Path(name).write_bytes(b"1")
    for running in (False, True):
        if running:
            owner.take()
            monkeypatch.setattr(owner, "_mine", None)
        before = contents()
        assert take(evaluate=True, **given) == (LAST if "resume" in given else None, None)
        assert contents() == before and owner._mine is None


def test_there_has_to_be_something_to_evaluate(tmp_path):
    assert take(evaluate=True, resume="auto") == (
        None,
        f"--evaluate: there are no weights in {tmp_path}",
    )


def test_pretrained_weights_are_evaluated_if_no_checkpoint_is_there_and_they_fit(monkeypatch):
    """B11: a head for other classes would be random."""
    monkeypatch.setattr(output_folder, "why_wrong_head", lambda args: "they know 1000 classes")
    both = {"evaluate": True, "resume": "auto", "pretrained": True}
    assert take(**both) == (None, "they know 1000 classes")
    progress(LAST, 3, 2)
    assert take(**both) == (LAST, None)


# The files of the run before


def old_run():
    for name in (*NAMES, CSV, LIST):
        Path(name).write_bytes(name.encode())


def in_folder():
    (folder,) = [path for path in Path().iterdir() if path.is_dir()]
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_files_of_the_old_run_are_moved_before_a_new_one_begins(monkeypatch, capsys):
    """A8, B14: into a folder with the date, the last checkpoint last; until then the old run can go
    on.
    """
    old_run()
    before = contents()
    assert take(overwrite=True) == (None, None)
    assert contents().keys() == {*before, owner.LOCK}  # it may still be refused
    moved, rename = [], os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: (moved.append(old), rename(old, new)))
    output_folder.begin(None, {})
    assert contents().keys() == {owner.LOCK}
    assert in_folder() == before and moved[-1] == LAST
    (folder,) = [path.name for path in Path().iterdir() if path.is_dir()]
    assert capsys.readouterr().out == f"the files of the run before are in {folder}/ now\n"
    assert files.sizes == {CSV: 0, METRICS: 0}


def test_run_that_was_killed_before_its_first_save_begins_again(monkeypatch, capsys):
    """A8: --overwrite, killed, --resume auto: not the old run, which was to be replaced."""
    old_run()
    assert take(overwrite=True) == (None, None)
    output_folder.begin(None, {})
    begin_again(monkeypatch)
    assert take(resume="auto") == (None, None)
    assert capsys.readouterr().out.endswith("starting from the beginning\n")


def test_files_are_moved_for_a_run_that_goes_on_from_elsewhere(tmp_path, monkeypatch):
    """A7: with --overwrite; what it goes on from stays where it is."""
    (tmp_path / "out").mkdir()
    progress("old", 3, 2)
    monkeypatch.chdir(tmp_path / "out")
    old_run()
    before, old = contents(), f"{tmp_path}/old"
    assert take(resume=old, overwrite=True) == (old, None)
    output_folder.begin(old, {"appended": {CSV: 1}})
    assert in_folder() == before and os.path.exists(old)
    assert files.sizes == {CSV: 0, METRICS: 0}


def test_what_the_killed_run_had_begun_to_write_is_removed_at_last():
    """A1: neither by --evaluate nor by a run that may still be refused."""
    begun = f"{CSV}.node7-0a1b2c3d.12.tmp"
    Path(begun).touch()
    assert take() == (None, None)
    assert begun in os.listdir()
    output_folder.begin(None, {})
    assert os.listdir() == [owner.LOCK]


def test_csv_of_a_run_that_never_saved_is_moved_away():
    """B14: rows of two runs would be in one file."""
    Path(CSV).write_bytes(b"1,2\n")
    assert take() == (None, None)
    output_folder.begin(None, {})
    assert in_folder() == {CSV: b"1,2\n"}


@pytest.mark.parametrize("named", [LAST, os.path.abspath], ids=["auto", "path"])
@pytest.mark.parametrize(
    "appended, rows",
    [
        ({CSV: 4, METRICS: 6}, b"1,2\n"),
        ({}, b""),
        ({CSV: 99}, b"1,2\n3,4\n"),
        (None, b"1,2\n3,4\n"),
        ({CSV: 4, "mine": 0}, b"1,2\n"),
    ],
    ids=["one epoch", "none", "shortened by the user", "older build", "another file"],
)
def test_rows_after_the_checkpoint_are_cut_off_when_a_run_goes_on(appended, rows, named):
    """B14: killed between csv and checkpoint, the row would be there twice."""
    Path(CSV).write_bytes(b"1,2\n3,4\n")
    Path(METRICS).write_bytes(b"{}\n{}\n{}\n")
    lines = Path(METRICS).read_bytes()[: 99 if appended is None else appended.get(METRICS, 0)]
    Path("mine").write_bytes(b"all of it")
    Path(LAST).write_bytes(b"1")
    path = named if isinstance(named, str) else named(LAST)
    output_folder.begin(path, {} if appended is None else {"appended": appended})
    assert contents() == {CSV: rows, METRICS: lines, LAST: b"1", "mine": b"all of it"}
    assert files.sizes == {CSV: len(rows), METRICS: len(lines)}


def test_checkpoint_on_another_disk_stays_there(tmp_path, monkeypatch):
    """A7, A8: a link in the folder is the run's own file, which --resume auto does not move away."""
    for name in ("out", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "out")
    progress("../disk/c", 3, 2)
    os.symlink("../disk/c", LAST)
    assert take(resume="auto") == (LAST, None)
    output_folder.begin(LAST, {})
    assert os.readlink(LAST) == "../disk/c" and sorted(os.listdir()) == [LAST, owner.LOCK]
    assert files.is_own(LAST)


# --keep


def after(epoch, keep):
    """Save the checkpoint after `epoch` epochs, as the script does."""
    with files.atomic_write(LAST, PREVIOUS) as temporary:
        torch.save(state_of(net(), epoch=epoch, step=0, run="r"), temporary)
    output_folder.keep(epoch, keep)


def kept():
    return sorted(path.name for path in Path().glob("checkpoint_epoch_*"))


def test_checkpoints_of_the_last_epochs_are_kept():
    for epoch in range(1, 12):
        after(epoch, keep=3)
    assert kept() == [f"checkpoint_epoch_{epoch}.pth.tar" for epoch in (10, 11, 9)]
    assert os.path.samefile("checkpoint_epoch_11.pth.tar", LAST)
    assert torch.load("checkpoint_epoch_9.pth.tar", weights_only=True)["epoch"] == 9
    after(12, keep=0)
    assert len(kept()) == 3  # without the option nothing is removed


def test_files_of_similar_names_are_not_removed():
    Path("checkpoint_epoch_best.pth.tar").touch()
    Path("checkpoint_epoch_2.pth.tar.old").touch()
    for epoch in (4, 5):
        after(epoch, keep=1)
    assert kept() == [
        "checkpoint_epoch_2.pth.tar.old",
        "checkpoint_epoch_5.pth.tar",
        "checkpoint_epoch_best.pth.tar",
    ]


def test_kept_checkpoints_and_events_are_moved_away_with_their_run():
    for epoch in (1, 2):
        after(epoch, keep=2)
    Path("events.out.tfevents.1.host.2.0.run").touch()
    Path("checkpoint_epoch_3.pth.tar.host.tmp").touch()
    output_folder.begin(None, {})
    (aside,) = Path().glob("overwritten-*")
    assert [path.name for path in Path().iterdir()] == [aside.name]
    assert {path.name for path in aside.iterdir()} == {
        *("checkpoint_epoch_1.pth.tar", "checkpoint_epoch_2.pth.tar", LAST, PREVIOUS),
        "events.out.tfevents.1.host.2.0.run",
    }


def test_kept_checkpoints_need_room_too(monkeypatch):
    room = 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: argparse.Namespace(free=room))
    size = 2 * 6 * 4  # six numbers of four bytes, and as many of the optimizer
    for keep, files_in_all in ((0, 4), (2, 6)):
        room = files_in_all * size
        assert output_folder.lack_of_room(net(), None, keep) is None
        room -= 1
        assert output_folder.lack_of_room(net(), None, keep)
