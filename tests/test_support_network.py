"""The model for the data, what is refused, and its wrappers."""

import argparse
import urllib.error
import warnings

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from conftest import ending  # noqa: E402
from tiny_run import as_ranks  # noqa: E402
from torchvision import models  # noqa: E402

from patches.support import network, ranks, saved  # noqa: E402


@pytest.fixture(autouse=True)
def job(monkeypatch):
    """The first process of two."""
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")


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
    return urls


def arguments(tmp_path, classes=3, **changes):
    for number in range(classes):
        (tmp_path / "train" / f"c{number}").mkdir(parents=True)
    defaults = {
        "data": str(tmp_path),
        "arch": "shufflenet_v2_x0_5",
        "pretrained": False,
        "num_classes": None,
        "evaluate": False,
        "resume": None,
    }
    return argparse.Namespace(**{**defaults, **changes})


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_architecture_is_trainable_or_refused_with_a_reason(every):
    known = models.list_models(module=models)
    assert len(known) > 70
    names = {*known[::every], "googlenet", "inception_v3"}
    reasons = {arch: network.why_unusable(arch, 7) for arch in names}
    refused = {arch: reason for arch, reason in reasons.items() if reason}
    assert set(refused) == {"googlenet", "inception_v3"}
    assert (
        refused["googlenet"] == "in training it gives GoogLeNetOutputs, the loss takes one tensor"
    )
    assert refused["inception_v3"].startswith("it does not take images of 224 x 224 (")
    assert "\n" not in refused["inception_v3"]


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_model_that_cannot_be_trained_can_be_evaluated(arch, tmp_path):
    """B10: in evaluation it has one output, and takes these images; it is made without a warning."""
    args = arguments(tmp_path, arch=arch, evaluate=True)
    network.check(args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = torch.nn.DataParallel(network.build(args))
    with torch.no_grad():
        scores = network.for_validation(model)(torch.zeros(2, 3, 224, 224))
    assert scores.shape == (2, 3)
    again = network.build(args)  # as with --resume of its checkpoint
    saved.load_weights(again, {"state_dict": network.unwrap(model).state_dict()}, "its checkpoint")
    with torch.no_grad():
        assert torch.equal(again.eval()(torch.zeros(2, 3, 224, 224)), scores)


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_all_ranks_evaluate_the_same_pretrained_model(arch, tmp_path, monkeypatch):
    """B10: with weights torchvision makes these models without the parts for training, and scales
    the images.
    """
    state = models.get_model(arch, init_weights=False).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_, **__: state)
    args = arguments(tmp_path, 1000, arch=arch, evaluate=True, pretrained=True)
    made = []
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        network.check(args)
        made.append(network.build(args, pretrained=True))
    assert all(model.transform_input for model in made)
    states = [model.state_dict() for model in made]
    assert states[0].keys() == states[1].keys() <= state.keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_what_evaluation_needs_is_checked_too(tmp_path, monkeypatch, capsys):
    """B10: a model that gives more than one tensor in evaluation as well."""

    class Pair(torch.nn.Module):
        def forward(self, images):
            return images, images

    monkeypatch.setitem(models._api.BUILTIN_MODELS, "pair", lambda **_: Pair())
    line = ending(capsys, network.check, arguments(tmp_path, arch="pair", evaluate=True))
    assert line.endswith(
        "error: --arch pair: in evaluation it gives tuple, the loss takes one tensor"
    )


@pytest.mark.parametrize("classes, outputs", [(3, None), (3, 1000), (1000, 1001)])
def test_evaluation_of_weights_for_other_classes_is_refused(
    tmp_path, capsys, downloads, classes, outputs
):
    """B11: the last layer would be random, or mean other classes."""
    args = arguments(tmp_path, classes, num_classes=outputs, evaluate=True, pretrained=True)
    line = ending(capsys, network.check, args)
    counts = f"know 1000 classes, train/ has {classes} and the model {outputs or classes}"
    way_out = "train it first, then evaluate it with --resume CHECKPOINT"
    assert line.endswith(f"error: --evaluate: the weights for --pretrained {counts}: {way_out}")
    assert downloads == []
    args.resume = "auto"
    network.check(args)  # a checkpoint may come
    assert line.endswith(f"error: {network.why_wrong_head(args)}")  # there is none
    args.evaluate = False
    assert network.why_wrong_head(args) is None


def test_evaluation_of_weights_for_as_many_classes_passes(tmp_path, downloads):
    """B11: ImageNet itself."""
    network.check(arguments(tmp_path, 1000, evaluate=True, pretrained=True))
    assert len(downloads) == 1


def test_trying_a_model_leaves_other_models_alone():
    network.why_unusable("shufflenet_v2_x0_5", 3)
    layer = torch.nn.BatchNorm1d(2)
    assert {value.device.type for value in layer.state_dict().values()} == {"cpu"}


@pytest.mark.parametrize("classes", [1, 3, 1201])
def test_model_has_an_output_for_each_class_in_train(tmp_path, classes):
    args = arguments(tmp_path, classes)
    network.check(args)
    assert args.num_classes is None  # `args` stays the command line
    assert network.build(args).fc.out_features == classes


def test_more_outputs_than_classes_can_be_asked_for(tmp_path):
    args = arguments(tmp_path, num_classes=1000)
    network.check(args)
    assert network.build(args).fc.out_features == 1000


def test_model_that_someone_registered_without_weights_is_fine_unless_they_are_asked_for(
    tmp_path, monkeypatch
):
    def own(*, weights=None, num_classes=1000):
        return torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, num_classes)
        )

    monkeypatch.setitem(models._api.BUILTIN_MODELS, "own", own)
    args = arguments(tmp_path, arch="own")
    network.check(args)
    assert network.build(args)[-1].out_features == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_classes": 2}, "--num-classes 2: train/ has 3 classes"),
        (
            {"arch": "googlenet"},
            "--arch googlenet: in training it gives GoogLeNetOutputs, the loss takes one tensor",
        ),
        (
            {"arch": "vit_h_14", "pretrained": True},
            "torchvision has no IMAGENET1K_V1 weights for vit_h_14, only ",
        ),
        (
            {"arch": "regnet_y_128gf", "pretrained": True},
            "no IMAGENET1K_V1 weights for regnet_y_128gf, only ",
        ),
        ({"classes": 0}, "there are no class folders in its train/"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_of_the_first_process(
    tmp_path, capsys, monkeypatch, changes, words
):
    args = arguments(tmp_path, **changes)
    for rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with pytest.raises(SystemExit) as ended:
            network.check(args)
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
def test_backbone_is_the_pretrained_one_and_the_head_is_new(arch, downloads, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = network.build(arguments(tmp_path, arch=arch), pretrained=True).state_dict()
    torch.manual_seed(7)
    whole = models.get_model(arch).state_dict()
    assert set(state) == set(whole)
    assert {name for name in state if state[name].shape != whole[name].shape} == HEADS[arch]
    assert all(torch.equal(state[name], whole[name]) for name in set(whole) - HEADS[arch])
    assert len(downloads) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{arch}: ") and out.endswith(" start at random, for 3 classes\n")
    assert all(name in out for name in HEADS[arch])


def test_pretrained_model_of_as_many_classes_is_loaded_whole(downloads, tmp_path, capsys):
    state = network.build(arguments(tmp_path, num_classes=1000), pretrained=True).state_dict()
    torch.manual_seed(7)
    whole = models.get_model("shufflenet_v2_x0_5").state_dict()
    assert all(torch.equal(state[name], whole[name]) for name in whole)
    assert downloads == [models.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url]
    assert capsys.readouterr().out == ""


def test_one_process_a_node_downloads_before_anything_has_started(downloads, monkeypatch, tmp_path):
    args = arguments(tmp_path, pretrained=True)
    for step in (lambda: network.check(args), lambda: network.build(args, pretrained=True)):
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
        (
            RuntimeError("invalid hash value\n(expected 1)"),
            "RuntimeError: invalid hash value (expected 1)",
        ),
    ],
)
def test_weights_that_cannot_be_had_are_one_line(error, words, monkeypatch, tmp_path, capsys):
    def load(url, *args, **kwargs):
        raise error

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", load)
    monkeypatch.setenv("TORCH_HOME", "/home/me/torch")
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    with pytest.raises(SystemExit) as ended:
        network.check(arguments(tmp_path, pretrained=True))
    assert ended.value.code == 2
    url = models.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url
    copy = "a copy of it in /home/me/torch/hub/checkpoints is used"
    expected = f"--pretrained: cannot get {url} ({words}); {copy}"
    assert capsys.readouterr() == ("", f"distributed.py: error: {expected}\n")


def test_weights_are_those_that_pretrained_true_has_always_meant(tmp_path, monkeypatch):
    args = arguments(tmp_path, arch="resnet50", num_classes=1000)
    asked = []
    monkeypatch.setattr(
        "torchvision.models._api.WeightsEnum.get_state_dict", lambda self, **_: asked.append(self)
    )
    for call in (
        lambda: network.build(args, pretrained=True),
        lambda: models.resnet50(pretrained=True),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises((TypeError, AttributeError)):  # there is no state to load
                call()
    assert len(asked) == 2 and asked[0] == asked[1]


def test_single_process_on_another_gpu_reads_the_weights_too(downloads, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    args = arguments(tmp_path, pretrained=True)
    network.check(args)
    network.build(args, pretrained=True)
    assert len(downloads) == 2


# Wrappers


def test_unwrapped_model_is_the_one_that_was_wrapped():
    model = torch.nn.Linear(1, 1)
    wrapped = torch.nn.Sequential()
    wrapped.module = model
    compiled = torch.nn.Sequential()
    compiled._orig_mod = wrapped
    outer = torch.nn.Sequential()
    outer.module = compiled
    assert all(network.unwrap(each) is model for each in (model, wrapped, compiled, outer))


def test_layer_that_is_called_module_is_no_wrapper():
    """B20: it is a part of the model."""
    model = torch.nn.Module()
    model.module, model.head = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    wrapped = torch.nn.DataParallel(torch.compile(torch.nn.DataParallel(model)))
    assert network.unwrap(wrapped) is model is network.unwrap(model)


def test_model_that_is_not_distributed_only_goes_into_evaluation_mode():
    model = torch.nn.DataParallel(torch.nn.BatchNorm1d(2))
    assert network.for_validation(model) is model
    assert not model.training and not model.module.training


def work(rank, world, store, results):
    """One of several processes, with running statistics of its own."""
    distributed = torch.nn.parallel.DistributedDataParallel
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        norm = torch.nn.BatchNorm1d(2)
        norm.running_mean.fill_(rank + 7.0)
        bare = network.for_validation(distributed(norm))
        norm.running_mean.add_(rank)  # as training does, after the wrapper has sent its own
        network.for_validation(distributed(norm, broadcast_buffers=False))
        values = ranks.gathered(10 * rank), ranks.broadcast(rank + 5)
        results.put((rank, bare is norm, norm.training, norm.running_mean.tolist(), values))
    finally:
        dist.destroy_process_group()


def test_all_ranks_validate_with_the_statistics_of_rank_0(tmp_path):
    world = 3
    found = as_ranks(work, world, tmp_path / "store")
    expected = (True, False, [7.0, 7.0], ([0, 10, 20], 5))
    assert found == [(rank, *expected) for rank in range(world)]
