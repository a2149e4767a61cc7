"""`support.saved`: checkpoints of other scripts, and the names of their weights."""

import argparse
import os
import pathlib
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
import numpy  # noqa: E402
from conftest import ending  # noqa: E402

from patches.support import output_folder, saved  # noqa: E402


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One process in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


class Own:
    """A class of the script that wrote a checkpoint."""


def foreign(**more):
    """What many scripts save that grew out of the same example."""
    return {
        "epoch": 2,
        "arch": "tiny",
        "state_dict": weights("module."),
        "best_acc1": 61.25,
        **more,
    }


def weights(prefix=""):
    return {
        f"{prefix}{name}": torch.full((2,), value)
        for name, value in (("weight", 1.0), ("bias", 2.0))
    }


# B17

TYPES = {
    "argparse.Namespace": argparse.Namespace(lr=0.1),
    "pathlib.PosixPath": pathlib.Path("runs/1"),
    f"{numpy.float64(0).__reduce__()[0].__module__}.scalar": numpy.float64(61.25),
    f"{__name__}.Own": Own(),
    "torch.nn.modules.linear.Linear": torch.nn.Linear(1, 1),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_type_that_may_run_code_is_named_with_the_way_out(name, zipped):
    """B17: torch's message was cut in mid sentence, with colours and no type."""
    torch.save(foreign(args=TYPES[name]), "a", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match="may run code") as caught:
        saved.read("a")
    assert str(caught.value) == (
        f"a: cannot be read: it holds {name}, which may run code from the file; "
        "if you trust whoever made it, add --trust-checkpoint"
    )


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_trusted_checkpoint_is_read_whatever_it_holds(name, zipped):
    """B17: but what its other keys mean, only the other script knows."""
    more = {"args": TYPES[name], "step": 70000, "seed": "x", "optimizer": {}}
    torch.save(foreign(**more), "a", _use_new_zipfile_serialization=zipped)
    state = saved.read("a", trusted=True)
    assert sorted(state) == ["arch", "best_acc1", "epoch", "optimizer", "state_dict"]
    assert torch.equal(state["state_dict"]["module.weight"], torch.ones(2))


def test_numpy_scalar_may_be_the_accuracy():
    """B17: the most frequent one."""
    torch.save(foreign(best_acc1=numpy.float64(61.25)), "a")
    with pytest.raises(ValueError, match="scalar, which may run code"):
        saved.read("a")
    assert float(saved.read("a", trusted=True)["best_acc1"]) == 61.25


def test_pickle_protocol_that_torch_reads_only_with_code_is_named():
    """B17: the message of torch is about an operand."""
    torch.save(foreign(), "a", pickle_protocol=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            ValueError, match=r"^a: cannot be read: it holds operand 149, .*checkpoint$"
        ):
            saved.read("a")
    assert saved.read("a", trusted=True)["epoch"] == 2


def test_class_that_is_not_there_is_one_line_though_trusted(monkeypatch):
    """B17: the other script's own class."""
    torch.save(foreign(args=Own()), "a")
    monkeypatch.delattr(f"{__name__}.Own")
    with pytest.raises(
        ValueError, match=r"^a: cannot be read: Can't get attribute 'Own' on <module .*$"
    ):
        saved.read("a", trusted=True)


@pytest.mark.parametrize(
    "content", [b"", b"text\n", b"\x80\x02junk", pickle.dumps([1], 2), b"PK\x03\x04" + bytes(40)]
)
@pytest.mark.parametrize("trusted", [False, True])
def test_broken_file_is_one_line_without_colours_and_never_a_matter_of_trust(content, trusted):
    """B17: to trust it would not help."""
    pathlib.Path("a").write_bytes(content)
    with pytest.raises(ValueError, match=r"^a: cannot be read: \w.*$") as caught:
        saved.read("a", trusted)
    assert "\x1b" not in str(caught.value) and "trust" not in str(caught.value)


def test_untrusted_checkpoint_runs_no_code(tmp_path):
    """B17: without --trust-checkpoint."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save(foreign(args=Evil()), "a")
    with pytest.raises(ValueError, match=r"it holds \w+\.mkdir, which may run code"):
        saved.read("a")
    assert not (tmp_path / "ran").exists()
    saved.read("a", trusted=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_resume_auto_goes_on_from_a_trusted_checkpoint(trusted, capsys):
    """B17: it was never whole for --resume auto."""
    torch.save(foreign(args=argparse.Namespace()), output_folder.LAST)
    args = argparse.Namespace(resume="auto", evaluate=True, trust_checkpoint=trusted)
    path, problem = output_folder.take(torch.nn.Linear(1, 1), args)
    assert (path, problem is None) == ((output_folder.LAST, True) if trusted else (None, False))
    assert capsys.readouterr().err.strip().endswith("" if trusted else "add --trust-checkpoint")


# B20


class Net(torch.nn.Module):
    """A model with layers of these names, each of one weight."""

    def __init__(self, *names):
        super().__init__()
        for number, name in enumerate(names):
            layer = self
            for part in name.split("."):
                if part not in dict(layer.named_children()):
                    layer.add_module(part, torch.nn.Module())
                layer = layer.get_submodule(part)
            layer.weight = torch.nn.Parameter(torch.tensor(float(number)))


LAYERS = [
    ("module", "head"),
    ("_orig_mod", "head"),
    ("module.module", "module.head", "head"),
    ("module.a", "_orig_mod.b"),
    ("module.a", "module.b"),
    ("module.module.a", "module.module.b"),
    ("a", "b"),
]
WRAPPERS = ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module.")


@pytest.mark.parametrize("names", LAYERS, ids=" ".join)
@pytest.mark.parametrize("prefix", WRAPPERS)
def test_prefix_of_wrappers_is_stripped_and_layers_keep_their_names(names, prefix):
    """B20: a layer that is really called `module` lost that part of its name."""
    kept = {prefix + name: value for name, value in Net(*names).state_dict().items()}
    model = Net(*names)
    torch.nn.init.constant_(next(model.parameters()), 9.0)
    saved.load_weights(model, {"state_dict": kept}, "a")
    assert model.state_dict() == Net(*names).state_dict()


@pytest.mark.parametrize("names", LAYERS, ids=" ".join)
def test_wrapped_model_gets_its_weights(names):
    """B20: whatever it is wrapped in, and its layers are called."""
    wrapped = torch.nn.DataParallel(torch.compile(Net(*names)))
    torch.nn.init.constant_(next(wrapped.parameters()), 9.0)
    saved.load_weights(wrapped, {"state_dict": Net(*names).state_dict()}, "a")
    assert [value.item() for value in wrapped.state_dict().values()] == list(range(len(names)))


def test_prefix_that_some_weights_lack_is_part_of_their_names(capsys):
    """B20: these are not the weights of a wrapped model."""
    mixed = {"module.weight": torch.ones(2, 2), "bias": torch.ones(2)}
    line = ending(capsys, saved.load_weights, torch.nn.Linear(2, 2), {"state_dict": mixed}, "a")
    words = "missing weight, unexpected module.weight"
    assert line == f"train.py: error: a: not the weights of this model: {words}"


def test_checkpoint_without_weights_is_refused(capsys):
    """B20: nothing has every prefix."""
    line = ending(capsys, saved.load_weights, torch.nn.Linear(2, 2), {"state_dict": {}}, "a")
    assert line == "train.py: error: a: not the weights of this model: missing weight, missing bias"
