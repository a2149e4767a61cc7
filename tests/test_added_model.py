"""What `model_for_data` inserts: the model for the data, and the refusals."""

import argparse
import urllib.error
import warnings

import pytest

torch = pytest.importorskip("torch")
from torchvision import models  # noqa: E402

from patches.added.model import build_model, check_model, why_untrainable  # noqa: E402


@pytest.fixture
def downloads(monkeypatch):
    """The URLs that were fetched; what comes is a model of 1000 classes, made from the seed 7."""
    urls = []

    def load(url, *args, **kwargs):
        urls.append(url)
        arch = url.rpartition("/")[2].rpartition("-")[0]
        arch = {"shufflenetv2_x0.5": "shufflenet_v2_x0_5"}.get(arch, arch)
        torch.manual_seed(7)
        return models.get_model(arch).state_dict()

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", load)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return urls


def arguments(tmp_path, classes=3, **changes):
    for number in range(classes):
        (tmp_path / "train" / f"c{number}").mkdir(parents=True)
    defaults = {"data": str(tmp_path), "arch": "shufflenet_v2_x0_5", "pretrained": False, "num_classes": None}
    return argparse.Namespace(**{**defaults, **changes})


def test_every_architecture_is_trainable_or_refused_with_a_reason():
    reasons = {arch: why_untrainable(arch, 7) for arch in models.list_models(module=models)}
    refused = {arch: reason for arch, reason in reasons.items() if reason}
    assert set(refused) == {"googlenet", "inception_v3"}
    assert len(reasons) > 70
    assert refused["googlenet"] == "in training it gives GoogLeNetOutputs, the loss takes one tensor"
    assert refused["inception_v3"].startswith("it does not take images of 224 x 224 (")
    assert "\n" not in refused["inception_v3"]


def test_trying_a_model_leaves_other_models_alone():
    why_untrainable("shufflenet_v2_x0_5", 3)
    layer = torch.nn.BatchNorm1d(2)
    assert {value.device.type for value in layer.state_dict().values()} == {"cpu"}


@pytest.mark.parametrize("classes", [1, 3, 1201])
def test_model_has_an_output_for_each_class_in_train(tmp_path, classes):
    args = arguments(tmp_path, classes)
    check_model(args)
    assert args.num_classes == classes
    assert build_model(args.arch, False, args.num_classes).fc.out_features == classes


def test_more_outputs_than_classes_can_be_asked_for(tmp_path):
    args = arguments(tmp_path, num_classes=1000)
    check_model(args)
    assert args.num_classes == 1000


def test_model_that_someone_registered_without_weights_is_fine_unless_they_are_asked_for(tmp_path, monkeypatch):
    def own(*, weights=None, num_classes=1000):
        return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, num_classes))

    monkeypatch.setitem(models._api.BUILTIN_MODELS, "own", own)
    args = arguments(tmp_path, arch="own")
    check_model(args)
    assert args.num_classes == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_classes": 2}, "--num-classes 2: train/ has 3 classes"),
        ({"arch": "googlenet"}, "--arch googlenet: in training it gives GoogLeNetOutputs, the loss takes one tensor"),
        ({"arch": "vit_h_14", "pretrained": True}, "torchvision has no IMAGENET1K_V1 weights for vit_h_14, only "),
        ({"arch": "regnet_y_128gf", "pretrained": True}, "no IMAGENET1K_V1 weights for regnet_y_128gf, only "),
        ({"classes": 0}, "there are no class folders in its train/"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_of_the_first_process(tmp_path, capsys, monkeypatch, changes, words):
    args = arguments(tmp_path, **changes)
    for rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with pytest.raises(SystemExit) as ended:
            check_model(args)
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == (1 if rank == 0 else 0)
        assert (words in err) == (rank == 0)


# How these models call their last layer, and what else depends on the number of classes.
HEADS = {
    "shufflenet_v2_x0_5": {"fc.weight", "fc.bias"},
    "squeezenet1_1": {"classifier.1.weight", "classifier.1.bias"},
    "mobilenet_v3_small": {"classifier.3.weight", "classifier.3.bias"},
    "densenet121": {"classifier.weight", "classifier.bias"},
}


@pytest.mark.parametrize("arch", HEADS)
def test_backbone_is_the_pretrained_one_and_the_head_is_new(arch, downloads, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = build_model(arch, True, 3).state_dict()
    torch.manual_seed(7)
    whole = models.get_model(arch).state_dict()
    assert set(state) == set(whole)
    assert {name for name in state if state[name].shape != whole[name].shape} == HEADS[arch]
    assert all(torch.equal(state[name], whole[name]) for name in set(whole) - HEADS[arch])
    assert len(downloads) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{arch}: ") and out.endswith(" start at random, for 3 classes\n")
    assert all(name in out for name in HEADS[arch])


def test_pretrained_model_of_as_many_classes_is_loaded_whole(downloads, capsys):
    state = build_model("shufflenet_v2_x0_5", True, 1000).state_dict()
    torch.manual_seed(7)
    whole = models.get_model("shufflenet_v2_x0_5").state_dict()
    assert all(torch.equal(state[name], whole[name]) for name in whole)
    assert downloads == [models.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url]
    assert capsys.readouterr().out == ""


def test_one_process_a_node_downloads_before_anything_has_started(downloads, monkeypatch, tmp_path):
    args = arguments(tmp_path, pretrained=True)
    for step in (lambda: check_model(args), lambda: build_model("shufflenet_v2_x0_5", True, 3)):
        for rank, local in enumerate([0, 1, 2, 0, 1, 2]):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("LOCAL_RANK", str(local))
            step()
        assert len(downloads) == 2  # two nodes
        downloads.clear()  # the second time the file is there


@pytest.mark.parametrize(
    "error, words",
    [
        (urllib.error.URLError("no route"), "URLError: <urlopen error no route>"),
        (RuntimeError("invalid hash value\n(expected 1)"), "RuntimeError: invalid hash value (expected 1)"),
    ],
)
def test_weights_that_cannot_be_had_are_one_line(error, words, monkeypatch, tmp_path, capsys):
    def load(url, *args, **kwargs):
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", load)
    monkeypatch.setenv("TORCH_HOME", "/home/me/torch")
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    with pytest.raises(SystemExit) as ended:
        check_model(arguments(tmp_path, pretrained=True))
    assert ended.value.code == 2
    url = models.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url
    expected = f"--pretrained: cannot get {url} ({words}); a copy of it in /home/me/torch/hub/checkpoints is used"
    assert capsys.readouterr() == ("", f"distributed.py: error: {expected}\n")


def test_weights_are_those_that_pretrained_true_has_always_meant(monkeypatch):
    asked = []
    monkeypatch.setattr("torchvision.models._api.WeightsEnum.get_state_dict", lambda self, **_: asked.append(self))
    for call in (lambda: build_model("resnet50", True, 1000), lambda: models.resnet50(pretrained=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises((TypeError, AttributeError)):  # there is no state to load
                call()
    assert len(asked) == 2 and asked[0] == asked[1]
