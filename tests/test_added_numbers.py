"""The code that patches insert to make the numbers right, on its own."""

import pytest

torch = pytest.importorskip("torch")

import torch.multiprocessing as mp  # noqa: E402
from conftest import REPO, load  # noqa: E402

from patches.added.for_validation import for_validation  # noqa: E402
from patches.added.measured import measured  # noqa: E402
from patches.added.over_ranks import over_ranks  # noqa: E402
from patches.added.slice_of_rank import slice_of_rank  # noqa: E402
from patches.added.split_batch import split_batch  # noqa: E402
from patches.added.totalled import totalled  # noqa: E402
from patches.added.while_finite import while_finite  # noqa: E402

upstream = load(REPO / "upstream" / "dataparallel.py", "upstream_dataparallel")


def processes(monkeypatch, node=None, job=None, rank=0):
    """The environment that a launcher makes for one of the processes."""
    for name, value in (("LOCAL_WORLD_SIZE", node), ("WORLD_SIZE", job), ("LOCAL_RANK", rank)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    "batch_size, node, job, own",
    [(256, 8, 8, 32), (256, 8, 16, 32), (10, 5, 5, 2), (3, 3, 3, 1), (7, None, None, 7), (12, None, 4, 3)],
)
def test_batch_is_split_over_the_processes_of_the_node(batch_size, node, job, own, monkeypatch):
    processes(monkeypatch, node, job)
    assert split_batch(batch_size) == own


@pytest.mark.parametrize(
    "batch_size, node, words",
    [
        (4, 8, "--batch-size 4: fewer images than the 8 processes of this node"),
        (0, 1, "--batch-size 0: fewer images than the 1 processes of this node"),
        (-8, 2, "--batch-size -8: fewer images than the 2 processes of this node"),
        (256, 3, "--batch-size 256: does not divide by the 3 processes of this node; 255 and 258 do"),
        (10, 4, "--batch-size 10: does not divide by the 4 processes of this node; 8 and 12 do"),
    ],
)
def test_batch_that_cannot_be_split_is_one_line_with_both_numbers(batch_size, node, words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/home/me/distributed.py"])
    for rank in (0, 1):
        processes(monkeypatch, node, node, rank)
        with pytest.raises(SystemExit) as ended:
            split_batch(batch_size)
        assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"distributed.py: error: {words}\n")


@pytest.mark.parametrize("images, world", [(70, 3), (70, 4), (3, 8), (5, 1), (0, 2)])
def test_slices_of_all_ranks_hold_every_index_once_and_in_order(images, world, monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: world)
    slices = []
    for rank in range(world):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        slices.append(slice_of_rank(range(images)))
    assert sorted(index for indices in slices for index in indices) == list(range(images))
    assert all(list(indices) == sorted(indices) for indices in slices)
    assert max(map(len, slices)) - min(map(len, slices)) <= 1
    read = [image.item() for indices in slices for image in torch.utils.data.DataLoader(range(images), sampler=indices)]
    assert sorted(read) == list(range(images))


# Meters: upstream's own, and what is inserted around them


def meters(*names):
    progress = upstream.ProgressMeter(9, [upstream.AverageMeter(name, ":.4f") for name in names])
    return progress, *progress.meters


def test_measured_stays_a_tensor_in_double_precision_without_a_graph():
    loss = torch.ones(1, requires_grad=True) * 0.1
    value = measured(loss)
    assert (value.shape, value.dtype, value.requires_grad) == ((), torch.float64, False)
    assert value.item() == loss.item()


def test_measured_takes_what_a_device_without_double_precision_has(monkeypatch):
    def double(self):
        raise TypeError("the MPS framework doesn't support float64")

    monkeypatch.setattr("torch.Tensor.double", double)
    assert measured(torch.tensor([2.5])).dtype == torch.float32


def test_line_shows_the_mean_over_samples_and_the_sums_go_on():
    progress, loss, time = meters("Loss", "Time")
    for value, count in ((0.7, 256), (0.8, 256), (0.9, 10)):
        loss.update(measured(torch.tensor(value, dtype=torch.float64)), count)
        time.update(3.0)
        assert over_ranks(progress) is progress
    assert loss.avg == pytest.approx((0.7 * 256 + 0.8 * 256 + 0.9 * 10) / 522, abs=1e-12)
    assert (loss.val, type(loss.avg), time.avg) == (0.9, float, 3.0)
    loss.update(measured(torch.tensor(0.0, dtype=torch.float64)), 522)
    assert str(over_ranks(progress).meters[0]) == "Loss 0.0000 (0.3764)"


def test_total_of_hits_is_exact_and_other_meters_are_added_up():
    for sizes in ([70], [32, 32, 6], [7] * 10, [1] * 70):
        progress, loss, acc1 = meters("Loss", "Acc@1")
        right = torch.tensor(([True] * 31 + [False] * 4) * 2)

        def loop(progress=progress, loss=loss, acc1=acc1, sizes=sizes, right=right):
            for hits in totalled(right.split(sizes), progress):
                loss.update(measured(hits.float().mean() / 3), len(hits))
                acc1.update(measured(hits.float().sum(0, keepdim=True).mul_(100.0 / len(hits))), len(hits))

        loop()
        assert (acc1.avg, acc1.count) == (100 * 62 / 70, 70)  # to the last bit
        assert loss.avg == pytest.approx(62 / 70 / 3, abs=1e-6)


def test_total_of_no_batch_at_all_is_nought():
    progress, acc1 = meters("Acc@1")
    assert list(totalled([], progress)) == []
    assert acc1.avg == 0.0


def work(rank, world, store, results):
    """One of several processes: what the inserted functions make of different numbers on each."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        progress, loss, _ = meters("Loss", "Time")
        loss.update(measured(torch.tensor(float(rank))), 4)
        loss.update(measured(torch.tensor(float(10 * rank))), 2)
        over_ranks(progress)
        line = (loss.val, loss.avg)

        progress, loss, acc1 = meters("Loss", "Acc@1")
        images = range(rank, 4, world)  # of three ranks one has two batches; of eight four have none
        for index in totalled(images, progress):
            loss.update(measured(torch.tensor(float(index))), 1)
            acc1.update(measured(torch.tensor([100.0 if index == 2 else 0.0])), 1)
        total = (loss.avg, acc1.avg, acc1.count)

        norm = torch.nn.BatchNorm1d(2)
        norm.running_mean.fill_(rank + 7.0)
        bare = for_validation(torch.nn.parallel.DistributedDataParallel(norm))
        norm.running_mean.add_(rank)  # as training does, after the wrapper has sent its own round
        for_validation(torch.nn.parallel.DistributedDataParallel(norm, broadcast_buffers=False))
        results.put((rank, line, total, (bare is norm, norm.training, norm.running_mean.tolist())))
    finally:
        dist.destroy_process_group()


def test_numbers_of_several_processes_are_those_of_all_their_samples(tmp_path):
    world = 3
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, (world, tmp_path / "store", results), nprocs=world)
    found = sorted(results.get() for _ in range(world))
    assert [rank for rank, *_ in found] == [0, 1, 2]
    for _, line, total, model in found:
        assert line == pytest.approx(((0 + 10 + 20) / 3, (4 * (0 + 1 + 2) + 2 * (0 + 10 + 20)) / 18))
        assert total == (1.5, 25.0, 4)
        assert model == (True, False, [7.0, 7.0])


# The first loss that is not finite


def trained(losses, reading):
    """The steps that come before a run of these losses ends; `reading` says which of them are read for a line."""
    progress, meter = meters("Loss")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e8)
    steps = []
    for _, loss in while_finite(enumerate(losses), model, meter, optimizer, epoch=4):
        meter.update(measured(torch.tensor(loss)), 2)
        if reading(len(steps)):
            over_ranks(progress)
        steps.append(loss)
    return steps


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "reading, bound", [(lambda step: True, 8), (lambda step: step % 5 == 0, 11), (lambda step: False, 20)]
)
def test_loss_that_is_not_finite_ends_the_run_where_a_line_is_printed_next(bad, reading, bound, monkeypatch, capsys):
    processes(monkeypatch)
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    losses = [0.5] * 7 + [bad] + [0.5] * 12
    taken = []
    with pytest.raises(SystemExit) as ended:
        trained((taken.append(loss) or loss for loss in losses), reading)
    assert ended.value.code == 2
    assert len(taken) == bound
    words = "(learning rate 1e+08); stopped, and the last checkpoint stays as it is"
    assert capsys.readouterr().err == f"distributed.py: error: epoch 4, step 7: the loss is {bad} {words}\n"


def test_finite_losses_pass(capsys):
    assert trained([0.5, 3e38], lambda step: step == 0) == [0.5, 3e38]
    assert capsys.readouterr() == ("", "")


def test_weights_that_are_not_finite_end_the_run_behind_the_last_batch(monkeypatch, capsys):
    processes(monkeypatch)
    progress, meter = meters("Loss")
    model = torch.nn.BatchNorm1d(3)
    model.running_var[1] = float("inf")
    steps = []
    with pytest.raises(SystemExit):
        for step, _ in while_finite(
            enumerate(range(3)), model, meter, torch.optim.SGD(model.parameters(), 0.5), epoch=0
        ):
            meter.update(0.5, 2)
            steps.append(step)
    assert steps == [0, 1, 2]
    assert "epoch 0: the loss is finite, the weights are not (learning rate 0.5)" in capsys.readouterr().err
