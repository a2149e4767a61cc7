"""Ring 3: runs with a number of steps, few validations, kept checkpoints, events and weights."""

import gzip
import json

import pytest
from test_runs_faults import FILES, STEPS, begin, data, difference, state, whole  # noqa: F401
from test_runs_metrics import lines_of, same

torch = pytest.importorskip("torch")


def test_a_run_in_shares_of_steps_ends_bit_for_bit_like_a_whole_one(begin, whole):  # noqa: F811
    """The second share ends with an epoch, which is validated, and the third has nothing to do."""
    undisturbed = begin()
    folder = None
    for most, epochs in ((2, 0), (STEPS, 1), (STEPS, 0), (STEPS + 1, 0)):
        end = begin("--max-steps", most, "--resume", "auto", folder=folder)
        ended, folder = end(), end.folder
        assert ended.statuses == [0, 0] and ended.errs == ["", ""], ended
        assert ended.outs[0].endswith(
            "stopped by --max-steps, and saved: --resume auto goes on from here\n"
        )
        assert ended.outs[0].count(" * Acc@1 ") == epochs
        found = state(folder / FILES[0])
        assert found["epoch"] * STEPS + found["step"] == most
    last = begin("--resume", "auto", folder=folder)()
    assert last.statuses == [0, 0]
    for name in (FILES[0], FILES[2]):
        assert not (why := difference(state(folder / name), whole()[name])), why
    same(lines_of(undisturbed().folder), lines_of(folder))


def test_only_some_epochs_are_validated_and_only_they_can_be_the_best(begin):  # noqa: F811
    end = begin("--epochs", 5, "--val-every", 2)()
    assert end.statuses == [0, 0], end.errs
    lines = [line["epoch"] for line in lines_of(end.folder) if line["kind"] == "val"]
    assert lines == [1, 3, 4]
    assert state(end.folder / FILES[2])["epoch"] in (2, 4, 5)


def test_what_a_run_writes_besides_is_right_after_a_kill(begin):  # noqa: F811
    pytest.importorskip("tensorboard")
    options = ("--epochs", 4, "--keep", 2, "--export-weights", "--tensorboard", "--profile", 1)
    fault = {"at": "step", "nth": 8, "do": "SIGKILL", "to": [0, 1]}
    killed = begin(*options, fault=fault)()
    assert killed.statuses == [-9, -9], killed
    end = begin(*options, "--resume", "auto", folder=killed.folder)()
    assert end.statuses == [0, 0] and end.errs == ["", ""], end
    kept = {path.name: state(path)["epoch"] for path in end.folder.glob("checkpoint_epoch_*")}
    assert kept == {"checkpoint_epoch_3.pth.tar": 3, "checkpoint_epoch_4.pth.tar": 4}

    weights = state(end.folder / FILES[2])["state_dict"]
    content = (end.folder / "model_best.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    for name, one in json.loads(content[8 : 8 + size]).items():
        if name != "__metadata__":
            start, stop = (8 + size + at for at in one["data_offsets"])
            assert content[start:stop] == weights[name].numpy().tobytes(), name

    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(end.folder)).Reload()
    lines = [line for line in lines_of(end.folder) if line["kind"] == "train"]
    shown = [(one.step, round(one.value, 4)) for one in events.Scalars("train/loss")]
    assert shown == [
        (line["epoch"] * STEPS + line["step"] + 1, round(line["loss"], 4)) for line in lines
    ]
    assert [one.step for one in events.Scalars("val/acc1")] == [3, 6, 9, 12]

    trace = json.loads(gzip.decompress((end.folder / "profile.json.gz").read_bytes()))
    steps = [one for one in trace["traceEvents"] if "ProfilerStep" in one.get("name", "")]
    assert len({one["name"] for one in steps}) == 1
