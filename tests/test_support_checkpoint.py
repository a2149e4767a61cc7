"""`support.checkpoint` and `support.saved`: nothing is lost, and nothing of another run replaced."""

import argparse
import os
import re
import signal
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from conftest import REPO, ending, load  # noqa: E402

from patches.support import checkpoint, network, ranks, saved, stop  # noqa: E402

upstream = load(REPO / "upstream" / "dataparallel.py", "upstream_dataparallel")
NAMES = ("checkpoint.pth.tar", "checkpoint_previous.pth.tar", "model_best.pth.tar")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One process in an empty folder, and no watch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setattr(stop, "_watch", None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def settings(**more):
    base = dict(data="d", evaluate=False, resume=None, overwrite=False, pretrained=False, start_epoch=0)
    return argparse.Namespace(**{**base, "arch": "tiny", "seed": None, "batch_size": 4, "lr": 0.1, "epochs": 9, **more})


def net(bias=0.0):
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, bias)
    return model


def run_of(model, optimizer=None, args=None, state=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    return checkpoint.Run(model, optimizer, args or settings(), state)


def state_of(model, optimizer=None, args=None, **more):
    """What the script saves after an epoch."""
    run = run_of(model, optimizer, args)
    run.best_acc1 = torch.tensor(50.0)
    own = {"epoch": 3, "arch": "tiny", "state_dict": model.state_dict(), "best_acc1": run.best_acc1}
    return {**own, **run.state(), **more}


def four_keys(**more):
    """What upstream's own script saves."""
    return {
        "epoch": 2,
        "arch": "tiny",
        "state_dict": net(1.0).state_dict(),
        "best_acc1": 61.25,
        **more,
    }


# What is saved


def test_state_is_plain_enough_for_torch_to_read_it_without_code():
    model = net()
    wrapped = torch.nn.Sequential()
    wrapped.module = torch.nn.Sequential()
    wrapped.module._orig_mod = model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save(state_of(wrapped, optimizer, step=4), "a")
    state = torch.load("a", weights_only=True)
    assert set(state["state_dict"]) == {"weight", "bias"}
    assert (state["best_acc1"], state["step"], state["world_size"]) == (50.0, 4, 1)
    assert torch.equal(state["optimizer"]["state"][0]["momentum_buffer"], torch.ones(2, 2))
    assert state["args"]["lr"] == 0.1


def test_every_key_is_documented_and_every_documented_key_is_there():
    documented = re.findall(r"^    (\w+)  ", checkpoint.__doc__, re.MULTILINE)
    assert sorted(documented) == sorted(state_of(net()))


# Reading


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_load_whatever_the_model_was_wrapped_in(prefix):
    model, old = torch.nn.DataParallel(net()), net(bias=7.0)
    weights = {prefix + name: value for name, value in old.state_dict().items()}
    saved.load_weights(model, {"state_dict": weights}, "old")
    assert torch.equal(network.unwrap(model).bias, old.bias)


def test_weights_of_another_model_are_refused_by_name(capsys):
    weights = {"weight": torch.ones(3, 2), "other": torch.ones(1)}
    line = ending(capsys, saved.load_weights, net(), {"state_dict": weights}, "old")
    words = "missing bias, unexpected other, weight is [3, 2], not [2, 2]"
    assert line == f"train.py: error: old: not the weights of this model: {words}"


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


def test_the_newest_whole_checkpoint_of_the_run_is_found():
    assert saved.newest() == (None, [])
    progress(NAMES[0], 3, 2)
    progress(NAMES[1], 3, 1)
    progress(NAMES[2], 4, 0)  # killed between the best copy and the checkpoint
    assert saved.newest() == (NAMES[2], [])
    progress(NAMES[2], 90, 0, run="another")
    assert saved.newest() == (NAMES[0], [])
    flip(NAMES[0])
    path, broken = saved.newest()
    assert (path, broken) == (NAMES[1], [f"{NAMES[0]}: cannot be read: a checksum does not fit"])


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "cannot be read: "),
        (b"text\n", "cannot be read: "),
        (
            {"weight": torch.ones(2)},
            "not a checkpoint of this script, it has no arch, best_acc1, epoch, state_dict",
        ),
        ([1, 2], "not a checkpoint of this script, it has no arch, best_acc1, epoch, state_dict"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(content, words):
    Path("a").write_bytes(content) if isinstance(content, bytes) else torch.save(content, "a")
    with pytest.raises(ValueError, match="^a: " + words):
        saved.read("a")


@pytest.mark.parametrize("broken", ["cut", "flipped"])
def test_resume_auto_goes_on_from_the_previous_one_and_says_so(broken, capsys):
    progress(NAMES[0], 3, 2)
    progress(NAMES[1], 3, 1)
    Path(NAMES[0]).write_bytes(Path(NAMES[0]).read_bytes()[:500]) if broken == "cut" else flip(NAMES[0])
    assert saved.choose(settings(resume="auto")) == NAMES[1]
    assert capsys.readouterr().err.startswith(f"train.py: {NAMES[0]}: cannot be read: ")
    assert os.path.samefile(NAMES[0], NAMES[1])  # which is the newest now, and not what the next save puts aside
    flip(NAMES[0])
    with pytest.raises(SystemExit):
        saved.choose(settings(resume="auto"))
    assert "--resume auto: no checkpoint in " in capsys.readouterr().err


def test_resume_auto_starts_from_the_beginning_if_there_is_nothing(tmp_path, capsys):
    assert saved.choose(settings(resume="auto")) is None
    words = f"--resume auto: no checkpoint in {tmp_path}, starting from the beginning\n"
    assert capsys.readouterr().out == words


@pytest.mark.parametrize("resume", ["auto", NAMES[0]])
def test_a_checkpoint_of_another_format_is_named_and_refused(resume, capsys):
    progress(NAMES[0], 3, 2, format=2)
    progress(NAMES[1], 3, 1)
    before = Path(NAMES[0]).read_bytes()
    args, model = settings(resume=resume), net(7.0)
    line = ending(capsys, checkpoint.start, model, torch.optim.SGD(model.parameters(), 0.1), args)
    assert line == f"train.py: error: --resume {NAMES[0]}: its format is 2, this script reads 1"
    assert Path(NAMES[0]).read_bytes() == before
    assert torch.equal(model.bias, net(7.0).bias)


# Before anything starts


def test_another_run_is_not_overwritten_unasked(capsys):
    checkpoint.check(settings())
    Path(NAMES[0]).touch()
    assert "is there already, and would be replaced: go on from it with --resume auto" in ending(
        capsys, checkpoint.check, settings()
    )
    for allowed in (
        {"overwrite": True},
        {"resume": "auto"},
        {"evaluate": True, "pretrained": True},
    ):
        checkpoint.check(settings(**allowed))


@pytest.mark.parametrize(
    "given, words",
    [
        ({"evaluate": True}, "--evaluate: there are no weights; name a checkpoint with --resume"),
        ({"resume": "old.pth.tar"}, "--resume old.pth.tar: there is no such file"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(given, words, capsys):
    assert words in ending(capsys, checkpoint.check, settings(**given))


def test_disk_without_room_for_the_checkpoints_is_refused(monkeypatch, capsys):
    free = {"free": 256}  # 8 numbers of 4 bytes, and as many of the optimizer, four times
    monkeypatch.setattr("shutil.disk_usage", lambda path: argparse.Namespace(**free))
    saved.check_room(torch.nn.Linear(1, 4))
    free["free"] = 190
    words = "0.0 MB free, and checkpoints take up to 0.0 MB; choose another --output-dir"
    assert words in ending(capsys, saved.check_room, torch.nn.Linear(1, 4))
    Path(NAMES[0]).write_bytes(bytes(66))  # which it will replace
    os.link(NAMES[0], NAMES[2])
    saved.check_room(torch.nn.Linear(1, 4))


def test_it_is_known_before_whether_a_run_resumes():
    assert not checkpoint.to_resume(settings()) and not checkpoint.to_resume(settings(resume="auto"))
    assert checkpoint.to_resume(settings(resume="a"))
    Path(NAMES[2]).touch()
    assert checkpoint.to_resume(settings(resume="auto")) and not checkpoint.to_resume(settings())


def test_options_have_their_defaults():
    parser = argparse.ArgumentParser()
    checkpoint.add_options(parser)
    assert vars(parser.parse_args([])) == {"resume": None, "overwrite": False}


# Start


def resumed(state, **given):
    torch.save(state, "a")
    args, model = settings(**{"resume": "a", **given}), net()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    before = dict(vars(args))
    run = checkpoint.start(model, optimizer, args)
    assert vars(args) == before  # the command line alone
    return run


def test_weights_momentum_and_progress_come_back_and_the_command_line_wins(capsys):
    old = net(bias=3.0)
    optimizer = torch.optim.SGD(old.parameters(), 0.1, momentum=0.5)
    old(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    run = resumed(state_of(old, optimizer, step=5, images=20, sums=[[1.0, 2]], seed=77, run="r"), lr=0.2)
    momentum = run.optimizer.state[run.model.weight]["momentum_buffer"]
    assert torch.equal(run.model.weight, old.weight)
    assert torch.equal(momentum, optimizer.state[old.weight]["momentum_buffer"])
    group = run.optimizer.param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.2, 0.9)
    assert (run.epoch, run.step, run.images, run.sums) == (3, 5, 20, [[1.0, 2]])
    assert (run.best_acc1, run.seed, run.id) == (50.0, 77, "r")
    out = capsys.readouterr().out
    assert out == "resumed from a: 3 epochs and 5 steps done, best Acc@1 50.000; lr was 0.1, is 0.2\n"


def test_a_new_run_begins_where_start_epoch_says():
    model = net()
    run = checkpoint.start(model, torch.optim.SGD(model.parameters(), 0.1), settings(start_epoch=4))
    assert (run.epoch, run.step, run.images, run.sums, run.best_acc1) == (4, 0, 0, [], 0.0)
    assert re.fullmatch("[0-9a-f]{32}", run.id) and 0 <= run.seed < 2**31
    assert run_of(net()).id != run.id


def test_a_seed_on_the_command_line_wins_and_is_named(capsys):
    assert resumed(state_of(net(), args=settings(seed=77)), seed=5).seed == 5
    assert capsys.readouterr().out.endswith("; seed was 77, is 5\n")


def test_another_world_size_goes_on_and_says_what_changed(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    run = resumed(state_of(net(), world_size=2, step=5, images=40))
    words = (
        "world_size was 2, is 3; global_batch was 8, is 12; the last 4 images of its unfinished epoch are trained again"
    )
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
    assert "; ignored: its best Acc@1, 177.778, is above 100 %" in capsys.readouterr().out


def test_there_has_to_be_something_to_evaluate(capsys, tmp_path):
    model = net()
    args = settings(evaluate=True, resume="auto")
    line = ending(capsys, checkpoint.start, model, torch.optim.SGD(model.parameters(), 0.1), args)
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


# Positions


@pytest.mark.parametrize("world, images, batch, step", [(1, 12, 4, 3), (2, 16, 4, 2), (2, 70, 4, 9), (4, 70, 8, 3)])
def test_steps_that_are_done_are_counted_over_all_ranks(world, images, batch, step, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    run = run_of(net(), args=settings(batch_size=batch), state={"epoch": 0, "images": images})
    assert run.first_step(-(-70 // world), batch) == step  # of 70 images, all done at 70 and more
    run.epoch = 1
    assert run.first_step(-(-70 // world), batch) == 0


LOADER = argparse.Namespace(sampler=range(20), batch_size=4)


def meters_of():
    return [upstream.AverageMeter(name) for name in ("Time", "Loss")]


def kept(run):
    """What `run.save` hands to the script's function, and whether as the best."""
    calls = []
    run.save(lambda *given: calls.append(given))
    return calls[0] if calls else None


def test_the_resumed_epoch_goes_on_with_its_sums_and_the_next_one_begins_with_none():
    run = run_of(net(), state={"epoch": 2, "images": 12, "sums": [[6.0, 3], [24.0, 12]]})
    meters = meters_of()
    assert run.begin_epoch(2, LOADER, meters) == 3
    assert [(meter.sum, meter.count, meter.avg) for meter in meters] == [
        (6.0, 3, 2.0),
        (24.0, 12, 2.0),
    ]
    assert (run.epoch, run.step) == (2, 3)
    meters = meters_of()
    assert run.begin_epoch(3, LOADER, meters) == 0
    assert [(meter.sum, meter.count) for meter in meters] == [(0, 0), (0, 0)]
    assert (run.epoch, run.step) == (3, 0)


def test_sums_come_back_on_rank_0_alone(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    run, meters = (
        run_of(net(), state={"epoch": 2, "images": 24, "sums": [[6.0, 3], [24.0, 24]]}),
        meters_of(),
    )
    assert run.begin_epoch(2, LOADER, meters) == 3
    assert [meter.sum for meter in meters] == [0, 0]
    assert kept(run) is None  # rank 0 writes


def test_a_save_goes_on_where_the_run_is():
    model = net()
    run, meters = run_of(model, args=settings(seed=7)), meters_of()
    run.best_acc1 = 12.5
    run.begin_epoch(4, LOADER, meters)
    state, is_best = kept(run)
    assert (state["epoch"], state["step"], state["images"], is_best) == (4, 0, 0, False)
    for step, loss in enumerate([0.5, 1.5]):
        meters[1].update(torch.tensor(loss), 4)
        run.reached(4, step + 1, meters)
    state, is_best = kept(run)
    assert (state["epoch"], state["step"], state["images"], is_best) == (4, 2, 8, False)
    assert state["sums"] == [[0.0, 0], [8.0, 8]]
    assert (state["best_acc1"], state["seed"], state["run"], state["arch"]) == (
        12.5,
        7,
        run.id,
        "tiny",
    )
    assert sorted(state) == sorted(state_of(model))


def test_what_is_saved_is_what_a_run_goes_on_from():
    run, meters = run_of(net(3.0)), meters_of()
    run.begin_epoch(4, LOADER, meters)
    meters[1].update(torch.tensor(2.0), 4)
    run.reached(4, 3, meters)
    again = resumed(kept(run)[0])
    assert (again.epoch, again.step, again.images, again.seed, again.id) == (
        4,
        3,
        12,
        run.seed,
        run.id,
    )
    meters = meters_of()
    assert again.begin_epoch(4, LOADER, meters) == 3
    assert (meters[1].sum, meters[1].count) == (8.0, 4)


def test_sums_of_all_ranks_are_added_up(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "gathered", lambda value: [value, value])
    run, meters = run_of(net()), meters_of()
    meters[1].update(torch.tensor(2.0), 4)
    run.reached(0, 1, meters)
    state, _ = kept(run)
    assert (state["sums"], state["images"], state["world_size"]) == ([[0.0, 0], [16.0, 8]], 8, 2)


def test_nothing_is_saved_that_a_loss_has_spoilt(capsys):
    run, meters = run_of(net()), meters_of()
    meters[1].update(torch.tensor(float("nan")), 4)
    run.reached(4, 8, meters)
    line = ending(capsys, run.save, lambda *given: pytest.fail("saved"))
    assert line.startswith("train.py: error: epoch 4, step 7: the loss is nan (learning rate 0.1)")


@pytest.mark.parametrize("every, steps", [(0, []), (2, [2, 4]), (3, [3])])
def test_save_is_due_every_so_many_steps(every, steps):
    run = run_of(net())
    due = []
    for step in range(1, 6):
        run.reached(0, step, [])
        due += [step] * run.save_is_due(every)
    assert due == steps


def test_a_stopped_run_saves_and_ends_with_status_75(monkeypatch, capsys):
    events = []
    monkeypatch.setattr(checkpoint.signal, "signal", lambda *given: events.append(given))
    run = run_of(net())
    run.reached(1, 2, meters_of())
    with pytest.raises(SystemExit) as ended:
        run.save_and_exit(lambda state, is_best: events.append(state["step"]))
    assert ended.value.code == 75
    assert events == [2, (signal.SIGTERM, signal.SIG_IGN)]
    assert capsys.readouterr().out == "stopped by a signal, and saved: --resume auto goes on from here\n"
