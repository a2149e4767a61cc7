"""`support.metrics`: what a run measures, a line at a time."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from conftest import REPO, ending, load  # noqa: E402
from tiny_run import net, new_process, run_of, settings  # noqa: E402

from patches.support import files, meters, metrics, owner  # noqa: E402

upstream = load(REPO / "upstream" / "dataparallel.py", "upstream_dataparallel")
NAMES = ("Time", "Data", "Loss", "Acc@1", "Acc@5")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)


def begun(run=None, steps=9):
    """A record at the begin of an epoch, and a function that makes a step of it."""
    run = run or run_of(net())
    progress = upstream.ProgressMeter(steps, [upstream.AverageMeter(name) for name in NAMES])
    record = metrics.Record(run, progress, run.optimizer, steps)

    def step(number, loss, acc1=50.0, seconds=2.0, wait=0.5, images=4):
        for meter, value in zip(progress.meters, (seconds, wait)):
            meter.update(value)
        for meter, value in zip(progress.meters[2:], (loss, acc1, 100.0)):
            meter.update(meters.measured(torch.tensor(value)), images)
        run.reached(run.epoch, number + 1, progress.meters)

    return SimpleNamespace(run=run, record=record, step=step, progress=progress)


def line(one, number):
    meters.reduce(one.progress)
    one.record.line(number)
    return lines()[-1]


def lines():
    return [json.loads(one) for one in Path("metrics.jsonl").read_text().splitlines()]


def test_line_has_means_and_rates_since_the_line_before():
    one = begun()
    one.step(0, 4.0)
    first = line(one, 0)
    assert [first[name] for name in ("step", "steps", "loss", "lr")] == [0, 9, 4.0, 0.1]
    assert (first["images_per_second"], first["data_wait"]) == (2.0, 0.25)
    one.step(1, 1.0, acc1=0.0, seconds=1, wait=0.75)
    one.step(2, 3.0, acc1=100.0, seconds=1, wait=0.25)
    second = line(one, 2)
    assert (second["loss"], second["acc1"], second["images_per_second"]) == (2.0, 50.0, 4.0)
    assert (second["data_wait"], one.record.rates()) == (0.5, ("LR 1.0000e-01", "Images/s 4.0"))


def test_resumed_run_goes_on_from_the_sums_of_the_line_before():
    one = begun()
    one.step(0, 4.0)
    line(one, 0)
    one.step(1, 1.0)
    kept = one.record.state_dict()
    again = begun(run_of(net(), state={"metrics": kept, "epoch": 0}))
    for meter, old in zip(again.progress.meters, one.progress.meters):
        meter.sum, meter.count = old.sum, old.count
    again.step(2, 3.0)
    assert line(again, 2)["loss"] == 2.0
    assert begun(run_of(net(), state={"metrics": kept, "epoch": 1})).record.sums == {}


def test_nothing_is_kept_of_an_epoch_that_is_done():
    one = begun(steps=1)
    one.step(0, 4.0)
    line(one, 0)
    assert one.record.state_dict() == {"epoch": 0, "sums": {}}


def test_numbers_that_are_not_finite_are_null_in_json():
    one = begun()
    one.step(0, math.nan, seconds=0.0, wait=0.0)
    found = line(one, 0)
    assert [found[name] for name in ("loss", "images_per_second", "data_wait")] == [None] * 3
    assert "NaN" not in Path("metrics.jsonl").read_text()


def test_validation_counts_once_the_epoch_is_saved():
    one = begun()
    one.step(0, 4.0)
    line(one, 0)
    length = files.sizes["metrics.jsonl"]
    meters.total(one.progress)
    metrics.validated(one.run, one.progress)
    found = lines()[-1]
    assert (found["kind"], found["loss"], found["images"], found["weights"]) == (
        "val",
        4,
        4,
        "last",
    )
    assert one.run.present()["appended"]["metrics.jsonl"] == length
    whole = one.run.state()["appended"]["metrics.jsonl"]
    assert whole == Path("metrics.jsonl").stat().st_size > length


def test_evaluation_other_ranks_and_a_lost_folder_write_nothing(monkeypatch):
    one = begun()
    one.step(0, 4.0)
    meters.total(one.progress)
    metrics.validated(run_of(net(), args=settings(evaluate=True)), one.progress)
    monkeypatch.setenv("RANK", "1")
    metrics.validated(one.run, one.progress)
    monkeypatch.delenv("RANK")
    monkeypatch.setattr(owner, "is_lost", lambda: True)
    metrics.validated(one.run, one.progress)
    assert not Path("metrics.jsonl").exists()


def test_full_disk_ends_the_run_in_one_line(monkeypatch, capsys, tmp_path):
    one = begun()
    one.step(0, 4.0)
    meters.total(one.progress)
    Path("metrics.jsonl").symlink_to("/dev/full")
    where = f"{tmp_path}/metrics.jsonl: No space left on device"
    line = f"train.py: error: cannot write {where}; the checkpoints stay as they are"
    assert ending(capsys, metrics.validated, one.run, one.progress) == line


def test_memory_is_that_of_a_device_that_counts_it(monkeypatch):
    assert metrics.device_memory(net()) is None
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: 3 * 2**19)
    parameter = SimpleNamespace(device=torch.device("cuda:1"))
    assert metrics.device_memory(SimpleNamespace(parameters=lambda: iter([parameter]))) == 1.5
