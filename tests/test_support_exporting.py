"""`support.exporting`: the weights of the best checkpoint, as safetensors."""

import argparse
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tiny_run import net, new_process, state_of  # noqa: E402

from patches.support import exporting, weight_files  # noqa: E402

BEST, WEIGHTS = "model_best.pth.tar", "model_best.safetensors"
ASKED = argparse.Namespace(export_weights=True)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)


def saved(**more):
    state = state_of(net(), epoch=3, step=0, run="r", **more)
    torch.save(state, BEST)
    return state


def metadata():
    content = Path(WEIGHTS).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {name: json.loads(text) for name, text in header["__metadata__"].items()}


def test_best_weights_come_back_bit_for_bit():
    state = saved()
    exporting.best(True, ASKED)
    found = weight_files.read(WEIGHTS, trusted=False)
    assert found.keys() == state["state_dict"].keys()
    assert all(torch.equal(found[name], state["state_dict"][name]) for name in found)
    assert metadata() == {
        "arch": state["arch"],
        "epochs": 3,
        "acc1": state["best_acc1"],
        "classes": state["classes"],
    }


def test_every_kind_of_tensor_is_written_as_the_format_says():
    """The library reads the same numbers: the format is its own."""
    library = pytest.importorskip("safetensors.torch")
    tensors = {str(kind): torch.arange(6).reshape(2, 3).to(kind).t() for kind in exporting.TYPES}
    tensors |= {"one": torch.tensor(7), "none": torch.empty(0, 3)}
    exporting.write(WEIGHTS, tensors, {})
    for found in (library.load_file(WEIGHTS), weight_files.read(WEIGHTS, trusted=False)):
        assert found.keys() == tensors.keys()
        for name, value in tensors.items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert torch.equal(found[name], value), name


def test_averaged_weights_are_those_that_were_the_best():
    average = {f"module.{name}": value + 1 for name, value in net().state_dict().items()}
    saved(ema={**average, "n_averaged": torch.tensor(2)})
    exporting.best(True, ASKED)
    found = weight_files.read(WEIGHTS, trusted=False)
    assert all(torch.equal(found[name], average[f"module.{name}"]) for name in found)


def test_it_is_written_when_there_is_a_new_best_or_none_yet():
    exporting.best(False, ASKED)  # before the first validation
    saved()
    exporting.best(True, argparse.Namespace(export_weights=False))
    assert not Path(WEIGHTS).exists()
    exporting.best(False, ASKED)  # of a run that was resumed with the option
    first = Path(WEIGHTS).read_bytes()
    saved(best_acc1=77.0)
    exporting.best(False, ASKED)
    assert Path(WEIGHTS).read_bytes() == first
    exporting.best(True, ASKED)
    assert metadata()["acc1"] == 77.0
