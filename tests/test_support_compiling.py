"""`support.compiling`: --compile, and machines where torch cannot."""

import argparse
import re

import pytest

torch = pytest.importorskip("torch")

from patches.support import compiling  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)


def begin(model, on=True):
    compiling.begin(model, argparse.Namespace(compile=on))


@pytest.fixture
def without_kernels(monkeypatch):
    """torch.compile without the part that makes kernels, which takes a minute."""
    whole = torch.compile
    monkeypatch.setattr("torch.compile", lambda function: whole(function, backend="eager"))


def test_model_in_wrappers_is_compiled_under_its_own_keys(without_kernels, capsys):
    layer = torch.nn.Linear(3, 2)
    model = torch.nn.Sequential()
    model.module = layer
    inputs, keys = torch.rand(4, 3), [*model.state_dict()]
    expected = model(inputs)
    begin(model)
    assert layer._compiled_call_impl is not None
    assert model._compiled_call_impl is None
    assert [*model.state_dict()] == keys
    torch.testing.assert_close(model(inputs), expected)
    (line,) = capsys.readouterr().out.splitlines()
    assert re.match(r"compile: one layer took \d+ s, so the first step takes longer", line)


def test_without_the_option_nothing_is_compiled(capsys):
    layer = torch.nn.Linear(3, 2)
    begin(layer, on=False)
    assert layer._compiled_call_impl is None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [RuntimeError("no g++ here\nmore"), ImportError("no g++ here")])
def test_machine_without_a_compiler_ends_the_job_in_one_line(error, monkeypatch, capsys):
    def fails(function):
        def call(inputs):
            raise error

        return call

    monkeypatch.setattr("torch.compile", fails)
    with pytest.raises(SystemExit) as ended:
        begin(torch.nn.Linear(3, 2))
    assert ended.value.code == 2
    why = f"torch cannot compile here: {type(error).__name__}: no g++ here"
    assert capsys.readouterr().err == f"train.py: error: --compile: {why}\n"


def test_torchs_own_message_without_a_compiler_is_one_line(monkeypatch):
    """A real one: no cache has what it asks for."""
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "/nonexistent"))
    why = compiling.why_impossible(torch.device("cpu"))
    assert "compiler" in why.lower() and "/nonexistent" in why and "\n" not in why


def test_copies_of_dataparallel_are_refused(capsys):
    model = torch.nn.Linear(3, 2)
    model.device_ids = [0, 1]
    with pytest.raises(SystemExit):
        begin(model)
    assert "use distributed.py, or one GPU with --gpus" in capsys.readouterr().err
