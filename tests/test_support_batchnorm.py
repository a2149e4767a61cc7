"""BatchNorm over all ranks: what is refused, what is converted, and the keys of its checkpoints."""

import argparse
import copy

import pytest

torch = pytest.importorskip("torch")
from conftest import ending  # noqa: E402
from torch import nn  # noqa: E402
from torchvision import models  # noqa: E402

from patches.support import batchnorm, saved  # noqa: E402


def arguments(**changes):
    return argparse.Namespace(**{"sync_bn": True, "device": None, "arch": "resnet18", **changes})


@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_cpu_is_refused_in_one_line(device, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    line = ending(capsys, batchnorm.check, arguments(device=device))
    assert line.endswith(
        "error: --sync-bn: torch has it for GPUs alone, and this job trains on the CPU"
    )


def test_torch_itself_refuses_the_cpu_in_the_middle_of_a_step(tmp_path):
    """Why it is refused at the start; if this fails, the refusal may go."""
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
            nn.SyncBatchNorm(3)(torch.ones(2, 3, 4, 4))
    finally:
        dist.destroy_process_group()


def test_gpus_are_taken_and_without_the_option_everything_is(monkeypatch):
    batchnorm.check(arguments(sync_bn=False, device="cpu"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    batchnorm.check(arguments())


def test_every_batchnorm_is_converted_and_nothing_of_the_model_changes():
    torch.manual_seed(1)
    model = models.shufflenet_v2_x0_5(num_classes=4)
    model(torch.randn(2, 3, 64, 64))  # running statistics of its own
    before, parameters = copy.deepcopy(model.state_dict()), [*model.parameters()]
    count = sum(type(layer) is nn.BatchNorm2d for layer in model.modules())
    new = batchnorm.synchronized(model, arguments())

    kinds = [type(layer) for layer in new.modules()]
    assert (kinds.count(nn.SyncBatchNorm), kinds.count(nn.BatchNorm2d)) == (count, 0)
    assert all(one is other for one, other in zip(new.parameters(), parameters, strict=True))
    after = new.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)

    plain = models.shufflenet_v2_x0_5(num_classes=4)
    saved.load_weights(plain, {"state_dict": after}, "its checkpoint")
    saved.load_weights(new, {"state_dict": plain.state_dict()}, "a checkpoint without the option")
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():  # evaluation needs no other rank, and no GPU
        assert torch.equal(new.eval()(images), plain.eval()(images))


def test_without_the_option_the_model_is_as_it_was():
    model = models.resnet18(num_classes=2)
    assert batchnorm.synchronized(model, arguments(sync_bn=False)) is model
    assert not any(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules())


def test_a_model_without_batchnorm_is_said_to_have_none(capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    model = nn.Linear(2, 2)
    assert batchnorm.synchronized(model, arguments(arch="vit_b_16")) is model
    assert capsys.readouterr().out == "--sync-bn: vit_b_16 has no BatchNorm, nothing changes\n"
