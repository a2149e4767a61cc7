"""`support.sizes`: images have upstream's size, or that which the model is made for."""

import argparse

import pytest

torch = pytest.importorskip("torch")
from conftest import ending  # noqa: E402
from torchvision import models, transforms  # noqa: E402

from patches.support import network, sizes  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def settled(arch: str, *argv: str) -> tuple:
    """(training, resize, crop, interpolation) after the check, and what the builder gets."""
    parser = argparse.ArgumentParser()
    sizes.add_options(parser)
    args = parser.parse_args(argv, argparse.Namespace(arch=arch))
    sizes.check(args)
    return (args.image_size, args.val_resize, args.val_crop, args.interpolation), args.builder


# As upstream; for models of another size than 224, as torchvision's page of each has them.
@pytest.mark.parametrize(
    "arch, expected",
    [
        ("resnet18", (224, 256, 224, "bilinear")),
        ("vit_b_16", (224, 256, 224, "bilinear")),
        ("vit_l_16", (224, 256, 224, "bilinear")),  # its page: 242
        ("swin_t", (224, 256, 224, "bilinear")),  # its page: 232, bicubic
        ("inception_v3", (299, 342, 299, "bilinear")),
        ("efficientnet_b1", (240, 256, 240, "bicubic")),
        ("efficientnet_b7", (600, 600, 600, "bicubic")),
        ("swin_v2_t", (256, 260, 256, "bicubic")),
        ("vit_h_14", (224, 256, 224, "bilinear")),  # no IMAGENET1K_V1
    ],
)
def test_by_default_sizes_are_upstreams_or_those_the_model_is_for(arch, expected, capsys):
    assert settled(arch)[0] == expected
    out = capsys.readouterr().out
    assert (out == "") == (expected == (224, 256, 224, "bilinear"))
    if out:
        size, resize, crop, mode = expected
        words = f"in validation {resize} and from these {crop} x {crop}, {mode}\n"
        assert out == f"images: {size} x {size} pixels in training, {words}"


@pytest.mark.parametrize("crop", [224, 299, 384, 176, 64])
def test_each_weight_has_a_crop_that_fits(crop):
    """The part that is cut, by exact fractions; torchvision has the same numbers for 224 and 299."""
    resize = sizes.of_crop(crop)
    assert abs(7 * resize - 8 * crop) * 2 <= 7
    assert {224: 256, 299: 342}.get(crop, resize) == resize


@pytest.mark.parametrize(
    "argv, expected",
    [
        ("--image-size 384", (384, 439, 384, "bilinear")),
        ("--image-size 176 --val-resize 232 --val-crop 224", (176, 232, 224, "bilinear")),
        ("--image-size 176 --val-crop 224", (176, 256, 224, "bilinear")),
        ("--image-size 128 --val-resize 128", (128, 128, 128, "bilinear")),
        ("--val-crop 280", (224, 320, 280, "bilinear")),
        ("--val-resize 232", (224, 232, 224, "bilinear")),
        ("--interpolation bicubic", (224, 256, 224, "bicubic")),
    ],
)
def test_what_is_given_counts_and_the_rest_follows(argv, expected):
    assert settled("resnet18", *argv.split())[0] == expected


def test_model_someone_registered_without_weights_gets_upstreams_sizes(monkeypatch):
    for name, build in {
        "own": lambda *, weights=None, num_classes=1000: torch.nn.Linear(1, num_classes),
        "other": lambda **_: torch.nn.Linear(1, 1),
    }.items():
        monkeypatch.setitem(models._api.BUILTIN_MODELS, name, build)
        assert settled(name)[0] == (224, 256, 224, "bilinear")


def test_validation_smaller_than_its_crop_is_refused(capsys):
    line = ending(capsys, settled, "resnet18", "--val-resize", "200")
    assert "--val-resize 200: images would get black edges, for 224 pixels are cut" in line


@pytest.mark.parametrize(
    "arch, size, expected",
    [
        ("vit_b_32", 384, {"image_size": 384}),
        ("maxvit_t", 448, {"input_size": (448, 448)}),
        ("shufflenet_v2_x0_5", 64, {}),
        ("swin_t", 256, {}),
    ],
)
def test_model_for_one_size_is_built_for_it(arch, size, expected):
    _, more = settled(arch, "--image-size", str(size))
    assert more == expected
    assert network.why_unusable(arch, 7, size=size, **more) is None
    if expected:
        assert network.why_unusable(arch, 7, size=size)  # or the builder would not matter


def arguments(tmp_path, arch: str, *argv: str) -> argparse.Namespace:
    for number in range(3):
        (tmp_path / "train" / f"c{number}").mkdir(parents=True)
    args = argparse.Namespace(
        data=str(tmp_path),
        arch=arch,
        num_classes=None,
        resume=None,
        pretrained=False,
        evaluate=False,
    )
    parser = argparse.ArgumentParser()
    sizes.add_options(parser)
    parser.parse_args(argv, args)
    sizes.check(args)
    return args


@pytest.mark.parametrize(
    "arch, argv, words",
    [
        ("vit_b_32", "--image-size 100", "it does not take images of 100 x 100 (Input shape indi"),
        ("vit_b_32", "--val-crop 256", "it does not take images of 256 x 256 (Wrong image height"),
        ("inception_v3", "--image-size 64", "it does not take images of 64 x 64 ("),
    ],
)
def test_size_that_a_model_does_not_take_ends_the_job_in_one_line(
    tmp_path, capsys, arch, argv, words
):
    args = arguments(tmp_path, arch, *argv.split())
    capsys.readouterr()
    assert f"error: --arch {arch}: {words}" in ending(capsys, network.check, args)


@pytest.mark.parametrize("arch", ["efficientnet_b0", "vit_b_32", "swin_t"])
def test_sizes_by_default_pass_the_check(tmp_path, arch):
    network.check(arguments(tmp_path, arch))


def test_weights_for_pretrained_come_with_their_positions_interpolated(
    tmp_path, monkeypatch, capsys
):
    """A line over the grid of positions stays a line, by torch's own interpolation."""
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda *_, **__: dict(state)
    )
    state = models.vit_b_32().state_dict()
    ramp = torch.arange(7.0).expand(7, 7).reshape(1, 49, 1).expand(1, 49, 768)
    token = state["encoder.pos_embedding"][:, :1]
    state["encoder.pos_embedding"] = torch.cat([token, ramp], dim=1)
    model = network.build(arguments(tmp_path, "vit_b_32", "--image-size", "416"), pretrained=True)
    found = model.encoder.pos_embedding.detach()
    assert found.shape == (1, 13 * 13 + 1, 768) and torch.equal(found[:, :1], token)
    grid = found[0, 1:].view(13, 13, 768)
    torch.testing.assert_close(
        grid[:, :, 5], (torch.arange(13) / 2).expand(13, 13), atol=0.1, rtol=0
    )
    assert torch.equal(model.encoder.ln.weight, state["encoder.ln.weight"])
    out = capsys.readouterr().out
    assert "vit_b_32: its position embedding is interpolated from 224 to 416 pixels\n" in out
    assert out.endswith(
        "vit_b_32: heads.head.weight, heads.head.bias start at random, for 3 classes\n"
    )


def test_mode_is_what_transforms_take():
    args = argparse.Namespace(interpolation="bicubic")
    assert sizes.mode(args) is transforms.InterpolationMode.BICUBIC
