"""`support.meters`: numbers of all ranks, and runs that end at a loss that is not finite."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from conftest import REPO, load  # noqa: E402
from rendering import make, once  # noqa: E402
from tiny_run import as_ranks  # noqa: E402

from patches.support import meters, ranks  # noqa: E402, ranks

upstream = load(REPO / "upstream" / "dataparallel.py", "upstream_dataparallel")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One process."""
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)


def made(*names):
    """Upstream's own meters."""
    progress = upstream.ProgressMeter(9, [upstream.AverageMeter(name, ":.4f") for name in names])
    return progress, *progress.meters


def test_measured_stays_a_tensor_in_double_precision_without_a_graph():
    loss = torch.ones(1, requires_grad=True) * 0.1
    value = meters.measured(loss)
    assert (value.shape, value.dtype, value.requires_grad) == ((), torch.float64, False)
    assert value.item() == loss.item()


def test_measured_takes_what_a_device_without_double_precision_has(monkeypatch):
    def double(self):
        raise TypeError("the MPS framework doesn't support float64")

    monkeypatch.setattr("torch.Tensor.double", double)
    assert meters.measured(torch.tensor([2.5])).dtype == torch.float32


def test_line_shows_the_mean_over_samples_and_the_sums_go_on():
    progress, loss, time = made("Loss", "Time")
    for value, count in ((0.7, 256), (0.8, 256), (0.9, 10)):
        loss.update(meters.measured(torch.tensor(value, dtype=torch.float64)), count)
        time.update(3.0)
        assert meters.reduce(progress) is progress
    assert loss.avg == pytest.approx((0.7 * 256 + 0.8 * 256 + 0.9 * 10) / 522, abs=1e-12)
    assert (loss.val, type(loss.avg), time.avg) == (0.9, float, 3.0)
    loss.update(meters.measured(torch.tensor(0.0, dtype=torch.float64)), 522)
    assert str(meters.reduce(progress).meters[0]) == "Loss 0.0000 (0.3764)"


LOOP = """
def train(loader, args):
    since = clock()
    for i, seconds in enumerate(loader):
        data.update(clock() - since)
        work()

        STEP
        if i % args.print_freq == 0:
            progress.display(i)
"""
STEPS = {
    "ours": ("now = clock()", "times.update(now - since)", "since = now"),
    "pytorch's": ("times.update(clock() - since)", "since = clock()"),
}


@pytest.mark.parametrize("step", STEPS)
def test_wait_for_the_device_is_time_of_the_step_and_not_of_the_next_ones_data(step):
    """B8: Data is the wait for a batch; Time is all of a step, and adds up to what the clock says.

    The host runs ahead of a GPU, and waits for it where a line is reduced. Upstream's `loss.item()`
    waited inside the step, too.
    """
    source = LOOP.replace("STEP", "\n        ".join(STEPS[step])).replace("clock", "time.time")
    after = once(source.encode(), make("train_meters"))
    now, shown = [0.0], []

    def passes(seconds):
        now[0] += seconds

    def batches():
        for _ in range(6):
            passes(1)
            yield None

    progress, times, data = made("Time", "Data")
    progress.display = lambda i: shown.append((i, times.val, data.val))
    names = {
        "time": SimpleNamespace(time=lambda: now[0]),
        "meters": SimpleNamespace(reduce=lambda progress: passes(100)),
        "work": lambda: passes(10),
        "progress": progress,
        "times": times,
        "data": data,
    }
    exec(after, names)
    names["train"](batches(), SimpleNamespace(print_freq=3))
    assert shown == [(0, 111, 1), (3, 111, 1)]
    assert (data.sum, times.sum) == (6, now[0]) == (6, 6 * 11 + 2 * 100)


def test_total_of_hits_is_exact_and_other_meters_are_added_up():
    for sizes in ([70], [32, 32, 6], [7] * 10, [1] * 70):
        progress, loss, acc1 = made("Loss", "Acc@1")
        right = torch.tensor(([True] * 31 + [False] * 4) * 2)
        for hits in right.split(sizes):
            loss.update(meters.measured(hits.float().mean() / 3), len(hits))
            percent = hits.float().sum(0, keepdim=True).mul_(100.0 / len(hits))
            acc1.update(meters.measured(percent), len(hits))
        meters.total(progress)
        assert (acc1.avg, acc1.count) == (100 * 62 / 70, 70)  # to the last bit
        assert loss.avg == pytest.approx(62 / 70 / 3, abs=1e-6)


def test_total_of_no_batch_at_all_is_nought():
    progress, acc1 = made("Acc@1")
    meters.total(progress)
    assert acc1.avg == 0.0


def work(rank, world, store, results):
    """One of several processes: what the functions make of different numbers on each."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        progress, loss, _ = made("Loss", "Time")
        loss.update(meters.measured(torch.tensor(float(rank))), 4)
        loss.update(meters.measured(torch.tensor(float(10 * rank))), 2)
        meters.reduce(progress)
        line = (loss.val, loss.avg)

        progress, loss, acc1 = made("Loss", "Acc@1")
        for index in range(rank, 4, world):  # of three ranks one has two batches
            loss.update(meters.measured(torch.tensor(float(index))), 1)
            acc1.update(meters.measured(torch.tensor([100.0 if index == 2 else 0.0])), 1)
        meters.total(progress)
        results.put((rank, line, (loss.avg, acc1.avg, acc1.count)))
    finally:
        dist.destroy_process_group()


def test_numbers_of_several_processes_are_those_of_all_their_samples(tmp_path):
    world = 3
    found = as_ranks(work, world, tmp_path / "store")
    assert [rank for rank, *_ in found] == [0, 1, 2]
    for _, line, total in found:
        assert line == pytest.approx(
            ((0 + 10 + 20) / 3, (4 * (0 + 1 + 2) + 2 * (0 + 10 + 20)) / 18)
        )
        assert total == (1.5, 25.0, 4)


# The first loss that is not finite


def train(losses, reads):
    """Train steps of these losses; `reads` says which of them are read for a line."""
    progress, meter = made("Loss")
    model = torch.nn.Linear(1, 1)
    finite = meters.FiniteCheck(meter, model, torch.optim.SGD(model.parameters(), 1e8), epoch=4)
    for step, loss in enumerate(losses):
        meter.update(meters.measured(torch.tensor(loss)), 2)
        if reads(step):
            meters.reduce(progress)
        finite.check(step)
    finite.check_all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "reads, bound",
    [(lambda step: True, 8), (lambda step: step % 5 == 0, 11), (lambda step: False, 20)],
)
def test_loss_that_is_not_finite_ends_the_run_where_a_line_is_printed_next(
    bad, reads, bound, capsys
):
    losses = [0.5] * 7 + [bad] + [0.5] * 12
    taken = []
    with pytest.raises(SystemExit) as ended:
        train((taken.append(loss) or loss for loss in losses), reads)
    assert ended.value.code == 2
    assert len(taken) == bound
    words = "(learning rate 1e+08); stopped, and the last checkpoint stays as it is"
    assert (
        capsys.readouterr().err
        == f"distributed.py: error: epoch 4, step 7: the loss is {bad} {words}\n"
    )


def test_steps_keep_their_numbers_if_the_epoch_was_resumed(capsys):
    _, meter = made("Loss")
    model = torch.nn.Linear(1, 1)
    finite = meters.FiniteCheck(meter, model, torch.optim.SGD(model.parameters(), 0.1), epoch=4)
    for step, loss in ((7, 0.5), (8, float("nan")), (9, 0.5)):
        meter.update(meters.measured(torch.tensor(loss)), 2)
        finite.check(step)
    with pytest.raises(SystemExit):
        finite.check_all()
    assert "epoch 4, step 8: the loss is nan" in capsys.readouterr().err


def test_finite_losses_pass(capsys):
    train([0.5, 3e38], lambda step: step == 0)
    train([], lambda step: True)
    assert capsys.readouterr() == ("", "")


def test_first_bad_step_of_all_ranks_is_named(monkeypatch, capsys):
    nan = float("nan")
    monkeypatch.setattr(ranks, "gathered", lambda value: [[], [(9, nan)], value, [(4, nan)]])
    with pytest.raises(SystemExit):
        train([0.5, 0.5], lambda step: False)
    assert "epoch 4, step 4: the loss is nan" in capsys.readouterr().err


def test_weights_that_are_not_finite_end_the_run_after_the_last_batch(capsys):
    _, meter = made("Loss")
    model = torch.nn.BatchNorm1d(3)
    model.running_var[1] = float("inf")
    finite = meters.FiniteCheck(meter, model, torch.optim.SGD(model.parameters(), 0.5), epoch=0)
    for step in range(3):
        meter.update(0.5, 2)
        finite.check(step)
    with pytest.raises(SystemExit):
        finite.check_all()
    assert (
        "epoch 0: the loss is finite, the weights are not (learning rate 0.5)"
        in capsys.readouterr().err
    )
