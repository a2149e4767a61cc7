"""`support.precision`: what a model computes in."""

import argparse
import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tiny_run  # noqa: E402

from patches.support import precision, ranks  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One process that computes in float32, and what it has set is set back."""
    tiny_run.new_process(tmp_path, monkeypatch)
    monkeypatch.setattr(precision, "_dtype", None)
    monkeypatch.setattr(precision, "_scaler", None)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def begin(kind, device=CPU, run=None):
    """`--amp kind`, for a run that keeps what it is given."""
    kept = SimpleNamespace(keep=lambda name, thing: None)
    precision.begin(run or kept, device, argparse.Namespace(amp=kind))


def fast_here(monkeypatch, answers):
    monkeypatch.setattr(precision, "is_bf16_fast", lambda device: answers[0])
    monkeypatch.setattr(ranks, "gathered", lambda value: answers)


@pytest.mark.parametrize(
    "answers, kind, line",
    [
        ([True, True], torch.bfloat16, "computes bf16 fast"),
        ([False], torch.float32, "does not compute bf16 fast"),
        ([True, False], torch.float32, "does not compute bf16 fast"),
    ],
)
def test_default_is_bf16_where_it_is_fast_on_all_ranks(answers, kind, line, monkeypatch, capsys):
    fast_here(monkeypatch, answers)
    begin(None)
    types = []
    model = torch.nn.Linear(3, 2)
    model.register_forward_hook(lambda model, inputs, output: types.append(output.dtype))
    assert precision.forward(model, torch.ones(1, 3)).dtype is torch.float32
    assert types == [kind]
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("precision: ") and said.endswith(f"this cpu {line}")


def test_off_is_float32_throughout_and_sets_nothing(monkeypatch, capsys):
    fast_here(monkeypatch, [True])
    before = torch.get_float32_matmul_precision()
    begin("off")
    model, inputs = torch.nn.Linear(3, 2), torch.rand(4, 3)
    assert torch.equal(precision.forward(model, inputs), model(inputs))
    assert torch.get_float32_matmul_precision() == before
    assert capsys.readouterr().out == "precision: float32\n"


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_what_remains_in_float32_may_use_tensorfloat32(kind):
    begin(kind)
    assert torch.get_float32_matmul_precision() == "high"


def test_type_that_torch_cannot_train_in_ends_the_job_in_one_line(capsys, monkeypatch):
    def refuse(*args, **named):
        raise RuntimeError("no half on this device\nmore")

    monkeypatch.setattr("torch.autocast", refuse)
    with pytest.raises(SystemExit) as ended:
        begin("fp16")
    assert ended.value.code == 2
    why = "torch cannot train with it on cpu: no half on this device"
    assert capsys.readouterr().err == f"train.py: error: --amp fp16: {why}\n"


def test_device_that_computes_in_another_type_than_asked_is_no_answer():
    assert precision.why_impossible(CPU, torch.bfloat16) is None
    with pytest.warns(UserWarning, match="dtype"):  # torch computes in float32, and warns
        assert "torch.float32" in precision.why_impossible(CPU, torch.float64)


# What a device is asked


@pytest.mark.parametrize(
    "capability, supported, fast",
    [((9, 0), True, True), ((8, 0), True, True), ((7, 5), True, False), ((8, 0), False, False)],
)
def test_gpu_is_asked_for_units_and_not_for_emulation(capability, supported, fast, monkeypatch):
    asked = []

    def is_bf16_supported(including_emulation=True):
        asked.append(including_emulation)
        return supported

    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", is_bf16_supported)
    assert precision.is_bf16_fast(torch.device("cuda", 1)) is fast
    assert asked in ([], [False])


def test_gpu_of_an_older_torch_is_asked_without_that_word(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    assert precision.is_bf16_fast(torch.device("cuda", 0)) is True


@pytest.mark.parametrize(
    "text, fast",
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("flags : fpu amx_bf16\n", True),
        ("flags : fpu avx2\nmodel name : bf16\n", False),
        ("Features : fp asimd bf16\n", True),
        ("Features : fp asimd\n", False),
    ],
)
def test_processor_is_asked_by_its_flags(text, fast, tmp_path, monkeypatch):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    features = precision.cpu_features(str(path))
    monkeypatch.setattr(precision, "cpu_features", lambda: features)
    assert precision.is_bf16_fast(CPU) is (fast and torch.backends.mkldnn.is_available())


def test_system_without_such_a_file_and_unknown_devices_have_no_fast_bf16(tmp_path):
    assert precision.cpu_features(str(tmp_path / "none")) == set()
    assert precision.is_bf16_fast(torch.device("meta")) is False


# float16


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def trained(kind, factor=1.0, fused=None):
    """A net and its gradients after one step in this type."""
    begin(kind)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=fused)
    scores = precision.forward(model, torch.linspace(-1, 1, 12).view(4, 3))
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1, 1, 0]))
    precision.backward(loss * factor)
    precision.step(optimizer)
    return model


@pytest.mark.parametrize("fused", [None, True])
def test_after_a_step_gradients_and_weights_are_those_of_float32(fused):
    exact, half = trained("off"), trained("fp16", fused=fused)
    assert precision._scaler.get_scale() == 65536
    for ours, theirs in zip(half.parameters(), exact.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0.02, atol=0.002)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.001)


@pytest.mark.parametrize("fused", [None, True])
def test_gradient_that_is_not_finite_leaves_the_weights_alone_and_halves_the_scale(fused):
    """So the run goes on: its loss is finite, and its weights are."""
    for ours, theirs in zip(trained("fp16", 1e5, fused).parameters(), net().parameters()):
        assert torch.equal(ours, theirs)
    assert precision._scaler.get_scale() == 32768


def test_scale_is_saved_and_taken_up_again_and_other_types_have_none():
    run = tiny_run.run_of(tiny_run.net())
    begin("fp16", run=run)
    precision._scaler.scale(torch.ones(1))
    precision._scaler.update(1024.0)
    kept = {name: copy.deepcopy(thing.state_dict()) for name, thing in run.kept.items()}
    assert kept["scaler"]["scale"] == 1024
    for kind, names in (("fp16", ["scaler"]), ("bf16", []), ("off", [])):
        again = tiny_run.run_of(tiny_run.net(), state={"best_acc1": 0, **kept})
        begin(kind, run=again)
        assert [*again.kept] == names
    begin("fp16", run=tiny_run.run_of(tiny_run.net(), state={"best_acc1": 0, **kept}))
    assert precision._scaler.state_dict()["scale"] == 1024


# Replicas of DataParallel


def test_replicas_compute_in_the_type_that_was_chosen(monkeypatch):
    """In the threads of torch's parallel_apply the type is float16, whatever it is outside."""

    class Parallel(torch.nn.Module):
        device_ids = [0, 1]

        def __init__(self, module):
            super().__init__()
            self.module = module

        def parallel_apply(self, replicas, inputs, named):
            with torch.autocast("cpu", torch.float16):
                return [one(*given, **more) for one, given, more in zip(replicas, inputs, named)]

        def forward(self, inputs):
            parts = [(part,) for part in inputs.chunk(2)]
            return torch.cat(self.parallel_apply([self.module] * 2, parts, [{}, {}]))

    monkeypatch.setattr("torch.nn.DataParallel", Parallel)
    layer, types = torch.nn.Linear(3, 2), []
    layer.register_forward_hook(lambda model, inputs, output: types.append(output.dtype))
    model = Parallel(layer)
    for kind in ("bf16", "fp16", "bf16"):
        begin(kind)
        assert precision.forward(model, torch.rand(4, 3)).dtype is torch.float32
        assert types == [precision.KINDS[kind]] * 2
        types.clear()
