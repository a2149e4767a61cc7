"""`support.checkpoint`: a run starts, or goes on, and what is refused leaves everything as it was."""

import argparse
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from conftest import ending  # noqa: E402
from tiny_run import begin_again, four_keys, net, new_process, settings, state_of  # noqa: E402

from patches.support import checkpoint, files, owner, ranks  # noqa: E402

NAMES = LAST, PREVIOUS, BEST = (
    "checkpoint.pth.tar",
    "checkpoint_previous.pth.tar",
    "model_best.pth.tar",
)
CSV, METRICS, LIST = "dataparallel.csv", "metrics.jsonl", "skipped_images.txt"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)


def start(args=None, model=None):
    model, args = model or net(), args or settings()
    return checkpoint.start(model, torch.optim.SGD(model.parameters(), args.lr, momentum=0.9), args)


def resumed(state, **given):
    torch.save(state, "a")
    args = settings(**{"resume": "a", **given})
    before = {**vars(args), "seed": None}
    run = start(args)
    assert {**vars(args), "seed": None} == before  # the command line alone
    return run


def tree():
    """All files here and their contents."""
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


# Before anything starts


def test_another_run_is_not_overwritten_unasked(capsys):
    checkpoint.check(settings())
    Path(LAST).touch()
    assert "is there already, and would be replaced: go on from it with --resume auto" in ending(
        capsys, checkpoint.check, settings()
    )
    for allowed in (
        {"overwrite": True},
        {"resume": "auto"},
        {"evaluate": True, "pretrained": True},
    ):
        checkpoint.check(settings(**allowed))


def test_checkpoint_of_elsewhere_does_not_replace_that_of_a_third_run(tmp_path, capsys):
    """A7: --resume OTHER/checkpoint, --output-dir of a third run; --overwrite allows it."""
    (tmp_path / "other").touch()
    (tmp_path / "out").mkdir()
    os.chdir("out")
    checkpoint.check(settings(resume=f"{tmp_path}/other"))
    Path(LAST).touch()
    line = ending(capsys, checkpoint.check, settings(resume=f"{tmp_path}/other"))
    assert line.startswith(
        f"train.py: error: {tmp_path}/out/{LAST} is there already, and would be replaced"
    )
    checkpoint.check(settings(resume=f"{tmp_path}/other", overwrite=True))
    checkpoint.check(settings(resume=f"{tmp_path}/out/{LAST}"))


@pytest.mark.parametrize(
    "given, words",
    [
        ({"evaluate": True}, "--evaluate: there are no weights; name a checkpoint with --resume"),
        ({"resume": "old.pth.tar"}, "--resume old.pth.tar: there is no such file"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(given, words, capsys):
    assert words in ending(capsys, checkpoint.check, settings(**given))


@pytest.mark.parametrize("there", [(), NAMES])
def test_a_run_either_overwrites_or_goes_on(there, capsys):
    """A8: --overwrite --resume auto would be the one thing at first and the other after a kill."""
    for name in there:
        Path(name).touch()
    line = ending(capsys, checkpoint.check, settings(resume="auto", overwrite=True))
    assert line.startswith("train.py: error: --overwrite --resume auto: ") and line.endswith(
        "give one of them"
    )


def test_it_is_known_before_whether_a_run_resumes():
    assert not checkpoint.to_resume(settings()) and not checkpoint.to_resume(
        settings(resume="auto")
    )
    assert checkpoint.to_resume(settings(resume="a"))
    Path(BEST).touch()
    assert checkpoint.to_resume(settings(resume="auto")) and not checkpoint.to_resume(settings())


def test_options_have_their_defaults():
    parser = argparse.ArgumentParser()
    checkpoint.add_options(parser)
    assert vars(parser.parse_args([])) == {
        "resume": None,
        "overwrite": False,
        "trust_checkpoint": False,
    }


# Start


def test_weights_momentum_and_progress_come_back_and_the_command_line_wins(capsys):
    old = net(bias=3.0)
    optimizer = torch.optim.SGD(old.parameters(), 0.1, momentum=0.5)
    old(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    run = resumed(
        state_of(old, optimizer, step=5, images=20, sums=[[1.0, 2]], seed=77, run="r"), lr=0.2
    )
    momentum = run.optimizer.state[run.model.weight]["momentum_buffer"]
    assert torch.equal(run.model.weight, old.weight)
    assert torch.equal(momentum, optimizer.state[old.weight]["momentum_buffer"])
    group = run.optimizer.param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.2, 0.9)
    assert (run.epoch, run.step, run.images, run.sums) == (3, 5, 20, [[1.0, 2]])
    assert (run.best_acc1, run.seed, run.id) == (50.0, 77, "r")
    out = capsys.readouterr().out
    assert (
        out == "resumed from a: 3 epochs and 5 steps done, best Acc@1 50.000; lr was 0.1, is 0.2\n"
    )


def test_a_new_run_begins_where_start_epoch_says():
    run = start(settings(start_epoch=4))
    assert (run.epoch, run.step, run.images, run.sums, run.best_acc1) == (4, 0, 0, [], 0.0)


def test_seed_of_the_checkpoint_wins_over_the_command_line_and_that_is_said(capsys):
    """B4: the order of an unfinished epoch follows from it: with another one, images would come
    twice.
    """
    assert resumed(state_of(net(), args=settings(seed=77)), seed=5).seed == 77
    assert capsys.readouterr().out.endswith("; seed stays 77, not 5\n")


@pytest.mark.parametrize("first, held", [(77, 77), (None, 12)])
def test_resumed_run_has_the_seed_and_the_kernels_of_the_run_before(first, held, capsys):
    """B4: --seed 77 asks for deterministic kernels too, and a seed that was drawn does not."""
    args = settings(resume="a")
    torch.save(state_of(net(), args=settings(seed=first), seed=held), "a")
    assert start(args).seed == held
    assert (args.seed, torch.backends.cudnn.deterministic) == (first, first is not None)
    assert "seed" not in capsys.readouterr().out


def test_seed_that_lost_once_is_not_named_again(monkeypatch, capsys):
    """B4: stopped with seed 77, resumed with --seed 5, and resumed again without one."""
    run = resumed(state_of(net(), args=settings(seed=77)), seed=5)
    begin_again(monkeypatch)
    capsys.readouterr()
    torch.save({"epoch": 4, "arch": "tiny", **run.state()}, "a")
    args = settings(resume="a")
    assert (start(args).seed, args.seed) == (77, 77)
    assert "seed" not in capsys.readouterr().out


def test_another_world_size_goes_on_and_says_what_changed(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    run = resumed(state_of(net(), world_size=2, step=5, images=40))
    words = "world_size was 2, is 3; global_batch was 8, is 12; the last 4 images of its unfinished epoch are trained again"
    assert capsys.readouterr().out.endswith(f"; {words}\n")
    assert run.first_step(20, 4) == 3  # 36 of the 40 images


def test_upstreams_four_keys_are_weights(capsys):
    run = resumed(four_keys())
    assert (run.epoch, run.best_acc1, run.model.bias.tolist()) == (2, 61.25, [1.0, 1.0])
    words = "there is no optimizer in it: its momentum starts at zero"
    out = capsys.readouterr().out
    assert out == f"resumed from a: 2 epochs and 0 steps done, best Acc@1 61.250; {words}\n"


def test_a_best_accuracy_above_100_is_ignored(capsys):
    run = resumed(four_keys(best_acc1=torch.tensor([177.778])))
    assert run.best_acc1 == 0.0
    assert "; its best Acc@1 177.778 is ignored: above 100 %" in capsys.readouterr().out


def test_there_has_to_be_something_to_evaluate(capsys, tmp_path):
    line = ending(capsys, start, settings(evaluate=True, resume="auto"))
    assert line == f"train.py: error: --evaluate: there are no weights in {tmp_path}"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"arch": "huge"}, "--resume a: it is of huge, --arch says tiny"),
        ({"classes": ["cat"]}, "--resume a: it has 1 classes, train/ has 0; not in both: cat"),
    ],
)
def test_checkpoint_of_another_model_or_data_set_is_refused(change, words, capsys):
    assert ending(capsys, resumed, state_of(net(), **change)) == f"train.py: error: {words}"


@pytest.mark.parametrize("resume", ["auto", LAST])
def test_a_checkpoint_of_another_format_is_named_and_refused(resume, capsys):
    torch.save(state_of(net(), format=2), LAST)
    torch.save(state_of(net()), PREVIOUS)
    before, model = tree(), net(7.0)
    line = ending(capsys, start, settings(resume=resume), model)
    assert line == f"train.py: error: --resume {LAST}: its format is 2, this script reads 1"
    owner.release()
    assert tree() == before
    assert torch.equal(model.bias, net(7.0).bias)


# The output folder


def test_job_owns_the_folder_and_its_lock_names_the_run(monkeypatch, capsys):
    """A2: a second job is refused, in one line that names the run."""
    run = start()
    monkeypatch.setattr(owner, "_mine", None)
    before = tree()
    line = ending(capsys, start, settings(resume="auto"))
    assert "another job writes here since " in line and f"(process {os.getpid()} on " in line
    assert f", run {run.id}): wait for its end, or choose another --output-dir" in line
    assert tree() == before


@pytest.mark.parametrize(
    "state, given",
    [
        ({"arch": "huge"}, {"resume": "auto"}),
        ({"state_dict": {}}, {"resume": LAST}),
        ({"arch": "huge"}, {"resume": "../a", "overwrite": True}),
        ({"state_dict": {}}, {"resume": "../a", "overwrite": True}),
    ],
    ids=str,
)
def test_run_that_is_refused_changes_nothing_in_the_folder(state, given, tmp_path, capsys):
    """A1: it may be the last check that refuses it; until then all files stay, the list of bad
    images too.
    """
    torch.save(state_of(net(), **state), "a")
    (tmp_path / "out").mkdir()
    os.chdir("out")
    for name in (CSV, LIST, f"{BEST}.node7-0a1b2c3d.12.tmp"):
        Path(name).write_bytes(name.encode())
    Path(LAST).write_bytes(Path("../a").read_bytes())
    before = tree()
    ending(capsys, start, settings(**given))
    owner.release()
    assert tree() == before


@pytest.mark.parametrize(
    "given", [{}, {"overwrite": True}, {"resume": "../a"}, {"resume": "../a", "overwrite": True}]
)
def test_new_files_are_those_of_one_run(given, tmp_path, capsys):
    """A8, B14: whatever was there is in a folder of its own before training."""
    torch.save(state_of(net()), "a")
    (tmp_path / "out").mkdir()
    os.chdir("out")
    for name in (CSV, LIST, *(NAMES if given.get("overwrite") else ())):
        Path(name).write_bytes(name.encode())
    before = tree()
    run = start(settings(**given))
    (folder,) = [path for path in Path().iterdir() if path.is_dir()]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(os.listdir()) == sorted([folder.name, owner.LOCK])
    assert run.state()["appended"] == {CSV: 0, METRICS: 0}
    assert f"the files of the run before are in {folder.name}/ now\n" in capsys.readouterr().out


def row(text):
    with files.appended(CSV, "a+", newline="") as log:
        log.write(text)


def save(state, is_best):
    with files.atomic_write(LAST, PREVIOUS) as temporary:
        torch.save(state, temporary)


@pytest.mark.parametrize("saves", [0, 1, 2])
def test_run_that_is_killed_between_csv_and_checkpoint_has_each_row_once(saves, monkeypatch):
    """B14: also in its first epoch, if it had saved inside that, and after a second kill."""
    run = start()
    run.save(save)
    for epoch in range(saves):
        row(f"{epoch}\n")
        run.reached(epoch + 1, 0, [])
        run.save(save)
    for _ in range(2):
        row("row of an epoch that no checkpoint holds\n")
        begin_again(monkeypatch)
        run = start(settings(resume="auto"))
        assert Path(CSV).read_text() == "".join(f"{epoch}\n" for epoch in range(saves))
        run.save(save)


def test_csv_that_a_user_has_shortened_stays_so(monkeypatch):
    """B14: and from there on rows are counted as before."""
    run = start()
    row("0\n")
    row("1\n")
    run.save(save)
    Path(CSV).write_text("1\n")
    begin_again(monkeypatch)
    start(settings(resume="auto")).save(save)
    assert Path(CSV).read_text() == "1\n"
    row("2\n")
    begin_again(monkeypatch)
    start(settings(resume="auto"))
    assert Path(CSV).read_text() == "1\n"


def test_evaluation_in_the_folder_of_a_running_job_only_reads(monkeypatch):
    """B12: neither the lock nor the list of bad images is touched."""
    run = start()
    run.save(save)
    Path(LIST).write_bytes(b"a\treason\n")
    Path(f"{LAST}.node7-0a1b2c3d.12.tmp").write_bytes(b"half")
    before, times = tree(), os.stat(".").st_mtime_ns
    monkeypatch.setattr(owner, "_mine", None)
    start(settings(evaluate=True, resume="auto"))
    start(settings(evaluate=True, resume=f"{os.getcwd()}/{LAST}"))
    assert (tree(), os.stat(".").st_mtime_ns) == (before, times)


def test_only_rank_0_owns_the_folder_and_each_host_begins_a_new_list(monkeypatch):
    """A2, B12: the other ranks hear from rank 0 what they go on from."""
    torch.save(state_of(net(), run="r", appended={}), LAST)
    for name in (CSV, LIST):
        Path(name).write_bytes(b"1,2\n")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    said = iter([(LAST, None), ["r", 3, 0], "r", 5])
    monkeypatch.setattr(ranks, "broadcast", lambda value: next(said))
    lists = []  # whether there is an old one each time when the ranks wait for each other
    monkeypatch.setattr(
        ranks, "gathered", lambda value: lists.append(os.path.exists(LIST)) or [value]
    )
    run = start(settings(resume="auto"))
    assert (run.id, run.epoch, next(said, "all")) == ("r", 3, "all")
    assert sorted(os.listdir()) == [LAST, CSV] and Path(CSV).read_bytes() == b"1,2\n"
    assert lists[-1] is False  # so no rank loads an image and then loses its line


def test_host_that_finds_another_checkpoint_ends_the_job(monkeypatch, capsys):
    torch.save(state_of(net(), run="r"), "a")
    said = iter([("a", None), ["r", 9, 0]])
    monkeypatch.setattr(ranks, "broadcast", lambda value: next(said))
    line = ending(capsys, start, settings(resume="a"))
    assert (
        line
        == "train.py: error: --resume a: not all hosts find the same checkpoint there; share the folder"
    )
