"""`support.run`: how far a run has come, and what it saves."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from conftest import REPO, ending, load  # noqa: E402
from tiny_run import begin_again, four_keys, net, new_process, run_of, settings, state_of  # noqa: E402

from patches.support import checkpoint, files, output_folder, ranks, stop  # noqa: E402

upstream = load(REPO / "upstream" / "dataparallel.py", "upstream_dataparallel")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)


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


def test_length_of_the_csv_is_saved():
    """B14: what is in it after that is of steps that the checkpoint does not hold."""
    files.cut("dataparallel.csv", 0)
    run = run_of(net())
    assert run.state()["appended"] == {"dataparallel.csv": 0}
    with files.appended("dataparallel.csv", "a+") as log:
        log.write("1,2\n")
    assert run.state()["appended"] == {"dataparallel.csv": 4}


def test_new_run_has_an_id_and_a_seed_of_its_own():
    run = run_of(net())
    assert re.fullmatch("[0-9a-f]{32}", run.id) and 0 <= run.seed < 2**31
    assert run_of(net()).id != run.id


@pytest.mark.parametrize(
    "given, held, seed",
    [(None, 5, 5), (7, 5, 5), (7, None, 7), (None, 0, 0), (0, None, 0)],
    ids=str,
)
def test_seed_is_the_checkpoints_then_the_command_lines(given, held, seed):
    """B4: an unfinished epoch follows from it, so a resumed run keeps it."""
    state = {} if held is None else {"seed": held}
    assert run_of(net(), args=settings(seed=given), state=state).seed == seed


# The folder is another job's


def other_run(run):
    torch.save(state_of(net(7.0), run=run) if run else four_keys(), "other")
    Path("other").replace(output_folder.LAST)


@pytest.mark.parametrize("run", ["another", None])
def test_checkpoint_of_another_run_ends_the_job(run, tmp_path, capsys):
    """A2: it has come since this run began, or saved; None: of another script."""
    mine = run_of(net())
    for saves in (0, 1):
        if saves:
            mine.save(save)
        other_run(run)
        before = Path(output_folder.LAST).read_bytes()
        line = ending(capsys, mine.save, save)
        found = run or "unknown"
        assert line == (
            f"train.py: error: {tmp_path}/{output_folder.LAST} is another run's by now ({found}, this is {mine.id}): "
            "it stays as it is, and this job ends"
        )
        assert Path(output_folder.LAST).read_bytes() == before
        Path(output_folder.LAST).unlink()


def test_checkpoint_that_is_damaged_by_others_ends_the_job(capsys):
    """A2: nobody knows whose it is."""
    run = run_of(net())
    run.save(save)
    Path("other").write_bytes(b"half")
    Path("other").replace(output_folder.LAST)
    assert f"is another run's by now (unknown, this is {run.id})" in ending(capsys, run.save, save)


def test_checkpoint_of_the_run_itself_ends_no_job(monkeypatch):
    """A2: the run's own one, another one of the same run, for example copied back, or none."""
    run = run_of(net())
    run.save(save)
    run.save(save)
    other_run(run.id)
    run.save(save)
    Path(output_folder.LAST).unlink()
    run.save(save)
    begin_again(monkeypatch)
    run_of(net(), state={"run": run.id}).save(save)
    assert sorted(path.name for path in Path().iterdir()) == [
        output_folder.LAST,
        output_folder.PREVIOUS,
    ]


def save(state, is_best):
    with files.atomic_write(output_folder.LAST, output_folder.PREVIOUS) as temporary:
        torch.save(state, temporary)


# Positions


@pytest.mark.parametrize(
    "world, images, batch, step", [(1, 12, 4, 3), (2, 16, 4, 2), (2, 70, 4, 9), (4, 70, 8, 3)]
)
def test_steps_that_are_done_are_counted_over_all_ranks(world, images, batch, step, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    run = run_of(net(), args=settings(batch_size=batch), state={"epoch": 0, "images": images})
    assert run.first_step(-(-70 // world), batch) == step  # of 70 images, all done at 70 and more
    run.epoch = 1
    assert run.first_step(-(-70 // world), batch) == 0


class Loader:
    sampler, batch_size = range(20), 4

    def __len__(self):
        return 5


LOADER = Loader()


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
    again = run_of(net(), state=kept(run)[0])
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
    monkeypatch.setattr(ranks, "has_process_group", lambda: True)
    monkeypatch.setattr("torch.distributed.barrier", lambda: events.append("all have saved"))
    monkeypatch.setattr(ranks, "gathered", lambda value: [value])
    monkeypatch.setattr(ranks, "broadcast", lambda value: value)
    run = run_of(net())
    run.reached(1, 2, meters_of())
    with pytest.raises(SystemExit) as ended:
        run.save_and_exit(lambda state, is_best: events.append(state["step"]))
    assert ended.value.code == stop.STATUS == 75
    assert events == [2, "all have saved"]
    assert (
        capsys.readouterr().out
        == "stopped by a signal, and saved: --resume auto goes on from here\n"
    )
