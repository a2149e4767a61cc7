"""`support.model_options` and `support.builder`: what torchvision's builders are asked for."""

import argparse

import pytest

torch = pytest.importorskip("torch")
from conftest import ending  # noqa: E402
from torchvision import models, ops  # noqa: E402

from patches.support import builder, model_options, network, saved, sizes  # noqa: E402

FAMILIES = ("convnext_tiny", "efficientnet_b0", "swin_t", "swin_v2_t", "maxvit_t")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def arguments(tmp_path, arch: str, *argv: str, classes: int = 3, **changes) -> argparse.Namespace:
    """What the command line gives, after the checks that stand before that of the model."""
    for number in range(classes):
        (tmp_path / "train" / f"c{number}").mkdir(parents=True)
    parser = argparse.ArgumentParser()
    sizes.add_options(parser)
    model_options.add_options(parser)
    args = argparse.Namespace(
        data=str(tmp_path), arch=arch, num_classes=None, resume=None, evaluate=False
    )
    args.pretrained = False
    vars(args).update(changes)
    parser.parse_args(argv, args)
    sizes.check(args)
    model_options.check(args)
    return args


def depths(model) -> list:
    """The probabilities of its stochastic depth, from the first block to the last."""
    return [part.p for part in model.modules() if isinstance(part, ops.StochasticDepth)]


def test_by_default_a_model_is_torchvisions(tmp_path):
    args = arguments(tmp_path, "shufflenet_v2_x0_5")
    assert args.builder == {}
    assert arguments(tmp_path / "vit", "vit_b_32").builder == {"image_size": 224}


@pytest.mark.parametrize("arch", ["vit_b_32", "squeezenet1_1", "mobilenet_v3_small", "alexnet"])
def test_dropout_is_everywhere_in_the_model(tmp_path, arch):
    args = arguments(tmp_path, arch, "--dropout", "0.375")
    with builder.on_meta():
        model = network.build(args)
    drops = [part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)]
    assert drops and set(drops) == {0.375}


@pytest.mark.parametrize("arch", FAMILIES)
def test_stochastic_depth_is_what_torchvision_makes_of_the_probability(tmp_path, arch):
    """All of these families let it rise in a line, over their blocks."""
    args = arguments(tmp_path, arch, "--stochastic-depth", "0.4")
    with builder.on_meta():
        found, plain = depths(network.build(args)), depths(models.get_model(arch))
    ratio = 0.4 / {"convnext_tiny": 0.1}.get(arch, 0.2)  # the builders' own, in their sources
    assert len(found) > 10
    torch.testing.assert_close(torch.tensor(found), ratio * torch.tensor(plain))
    (last,) = {"efficientnet_b0": {0.375}}.get(arch, {0.4})  # it counts one block more
    assert max(found) == pytest.approx(last)


def test_stochastic_depth_can_be_turned_off(tmp_path):
    for number, arch in enumerate(FAMILIES):
        args = arguments(tmp_path / str(number), arch, "--stochastic-depth", "0")
        with builder.on_meta():
            assert set(depths(network.build(args))) == {0.0}


@pytest.mark.parametrize(
    "arch, argv, words",
    [
        ("resnet18", "--dropout 0.1", "--dropout 0.1: resnet18 takes none"),
        ("maxvit_t", "--dropout 0.1", "--dropout 0.1: maxvit_t takes none"),
        ("vit_b_32", "--stochastic-depth 0.1", "--stochastic-depth 0.1: vit_b_32 has none"),
        ("resnet18", "--stochastic-depth 0.1", "--stochastic-depth 0.1: resnet18 has none"),
        # Its builder takes any keyword, and forgets it.
        ("mobilenet_v3_small", "--stochastic-depth 0.1", "mobilenet_v3_small has none"),
    ],
)
def test_model_that_has_no_such_thing_ends_the_job_in_one_line(tmp_path, capsys, arch, argv, words):
    line = ending(capsys, arguments, tmp_path, arch, *argv.split())
    assert line.endswith(words)


@pytest.mark.parametrize(
    "arch, size",
    [pytest.param("googlenet", 224, marks=pytest.mark.thorough), ("inception_v3", 299)],
)
def test_model_of_several_outputs_trains_with_one(tmp_path, arch, size):
    args = arguments(tmp_path, arch, "--dropout", "0")
    network.check(args)
    assert args.image_size == size
    model = network.build(args).train()
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model(images), torch.tensor([0, 2]))
    loss.backward()
    assert all(value.grad is not None for value in model.parameters())
    again = network.build(args)  # for its checkpoint
    saved.load_weights(again, {"state_dict": model.state_dict()}, "its checkpoint")
    with torch.no_grad():
        assert torch.equal(again.eval()(images), model.eval()(images))


@pytest.mark.parametrize("arch, classes", [("googlenet", 1000), ("inception_v3", 3)])
def test_pretrained_model_of_several_outputs_sees_what_its_weights_saw(
    tmp_path, monkeypatch, capsys, arch, classes
):
    """The features are those of torchvision's own model with these weights."""
    torch.manual_seed(2)
    state = models.get_model(arch, init_weights=False).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: state)
    args = arguments(tmp_path, arch, classes=classes, pretrained=True)
    network.check(args)
    model = network.build(args, pretrained=True)
    whole = models.get_model(arch, weights="IMAGENET1K_V1")
    out = capsys.readouterr().out
    assert ("fc.weight, fc.bias start at random" in out) == (classes == 3)
    images = torch.randn(2, 3, 128, 128)
    for one in (model, whole):
        one.eval()
        if classes == 3:
            one.fc = torch.nn.Identity()
    with torch.no_grad():
        assert torch.equal(model(images), whole(images))
    assert not any(name.startswith(("aux", "Aux")) for name, _ in model.named_parameters())


def test_options_that_a_builder_takes_leave_pretrained_weights_as_they_are(tmp_path, monkeypatch):
    state = models.squeezenet1_1().state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: state)
    args = arguments(tmp_path, "squeezenet1_1", "--dropout", "0.2", classes=1000, pretrained=True)
    model = network.build(args, pretrained=True)
    assert model.classifier[0].p == 0.2
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_keyword_is_taken_or_not_whatever_the_value_is():
    assert builder.takes("vit_b_32", image_size=100)  # its patches do not divide it
    assert not builder.takes("shufflenet_v2_x0_5", image_size=100)
