"""Ring 3: metrics.jsonl has each line once, however often the run was stopped or killed."""

import json

import pytest

torch = pytest.importorskip("torch")

MEASURED = ("images_per_second", "data_wait", "time")  # by a clock
TRAIN = ["kind", "epoch", "step", "steps", "lr", "loss", "acc1", "acc5", *MEASURED[:2]]
VAL = ["kind", "epoch", "weights", "loss", "acc1", "acc5", "images", "images_per_second"]
JOB = ["--arch", "tiny", "--batch-size", "4", "--seed", "1", "--lr", "0.01", "--workers", "0"]
JOB += ["--print-freq", "2", "--epochs", "3", "--resume", "auto"]
EMA = ("--ema", "8", "--amp", "off")


def lines_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same(one: list[dict], other: list[dict]) -> None:
    """All but what a clock has measured; a resumed sum may differ in its last bits."""
    assert len(one) == len(other)
    for first, second in zip(one, other):
        for name, value in first.items():
            close = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            assert name in MEASURED or second[name] == close, (name, first, second)


@pytest.fixture(scope="module")
def job(fork, build_of, noise):
    """A function that starts two ranks of a series, and gives what waits for their end."""

    def job(series, *options, **given):
        script = build_of("--series", series) / "distributed.py"
        return fork(script, "--data", noise, *JOB, *options, ranks=2, **given)

    return job


@pytest.fixture(scope="module")
def whole(job):
    end = job("standard", "--save-every", 1)()
    assert end.statuses == [0, 0], end.err
    return end


def test_file_has_what_is_printed(whole):
    found, printed = lines_of(whole.folder), whole.outs[0].splitlines()
    lines = [line.split("\t") for line in printed if line.startswith("Epoch: ")]
    train = [line for line in found if line["kind"] == "train"]
    assert len(train) == len(lines) > 3
    for line, shown in zip(train, lines):
        assert list(line) == [*TRAIN, "device_memory", "time"] and line["device_memory"] is None
        assert shown[0] == f"Epoch: [{line['epoch']}][{line['step']}/{line['steps']}]"
        rate = f"Images/s {line['images_per_second']:.1f}"
        assert shown[-2] == f"LR {line['lr']:.4e}" and float(rate[9:]) == pytest.approx(
            float(shown[-1][9:]), abs=0.11
        )
        assert 0 <= line["data_wait"] <= 1
        if line["step"] == 0:
            assert shown[3] == f"Loss {line['loss']:.4e} ({line['loss']:.4e})"
    val = [line for line in found if line["kind"] == "val"]
    results = [line for line in printed if line.startswith(" * Acc@1")]
    assert [list(line) for line in val] == [[*VAL, "device_memory", "time"]] * 3
    assert results == [f" * Acc@1 {line['acc1']:.3f} Acc@5 {line['acc5']:.3f}" for line in val]
    assert {line["weights"] for line in val} == {"last"}


def test_mean_is_that_of_all_images_since_the_line_before(job):
    each = lines_of(job("standard", "--print-freq", 1)().folder)
    for line in lines_of(job("standard", "--print-freq", 2)().folder):
        if line["kind"] == "train" and line["step"]:
            pair = [
                one
                for one in each
                if one["kind"] == "train"
                and one["epoch"] == line["epoch"]
                and line["step"] - 2 < one["step"] <= line["step"]
            ]
            for name in ("loss", "acc1"):
                mean = sum(one[name] for one in pair) / 2
                assert line[name] == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("every", [0, pytest.param(1, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize(
    "fault",
    [
        {"at": "step", "nth": 4, "do": "SIGKILL", "rank": 0},
        {"at": "step", "nth": 7, "do": "SIGTERM", "rank": 1, "rest": True},
        {"at": "validation", "nth": 3, "do": "SIGKILL", "rank": 0},
        {"at": "validation", "nth": 8, "do": "SIGTERM", "rank": 0, "rest": True},
    ],
    ids=lambda fault: f"{fault['do']} in {fault['at']}",
)
def test_no_line_is_there_twice_and_none_is_missing_after_a_resume(every, fault, job, whole):
    options = ["--save-every", every]
    stopped = job("standard", *options, fault={"to": [fault["rank"]], **fault})()
    assert any(stopped.statuses), stopped
    again = job("standard", *options, folder=stopped.folder)()
    assert again.statuses == [0, 0], again.err
    same(lines_of(whole.folder), lines_of(again.folder))


def test_half_a_line_of_a_killed_run_is_cut_off(job, whole):
    stopped = job("standard", fault={"at": "step", "nth": 7, "do": "SIGKILL", "to": [0]})()
    with open(stopped.folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "tr')
    again = job("standard", folder=stopped.folder)()
    assert again.statuses == [0, 0], again.err
    same(lines_of(whole.folder), lines_of(again.folder))


def test_average_that_is_validated_again_is_there_once(job):
    """The job is stopped in the second validation of an epoch: both are done again."""
    options = [*EMA, "--epochs", "7", "--print-freq", "9"]
    whole = job("vit", *options)()
    averaged = [line["weights"] for line in lines_of(whole.folder) if line["kind"] == "val"]
    assert averaged == ["last"] * 5 + ["last", "ema"] * 2
    for nth, last in ((5 * 5 + 3, "train"), (5 * 6 + 3, "val")):
        fault = {"at": "validation", "nth": nth, "do": "SIGTERM", "rank": 0, "rest": True}
        stopped = job("vit", *options, fault=fault)()
        assert stopped.statuses == [75, 75], stopped.err
        assert lines_of(stopped.folder)[-1]["kind"] == last
        again = job("vit", *options, folder=stopped.folder)()
        assert again.statuses == [0, 0], again.err
        same(lines_of(whole.folder), lines_of(again.folder))


def test_evaluation_writes_nothing(job, whole):
    before = (whole.folder / "metrics.jsonl").read_bytes()
    assert job("standard", "--evaluate", folder=whole.folder)().statuses == [0, 0]
    assert (whole.folder / "metrics.jsonl").read_bytes() == before
