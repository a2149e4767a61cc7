"""`support.initial`: what a run starts from, and what fits at another size of the images."""

import math
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
from conftest import ending  # noqa: E402
from tiny_run import as_ranks, begin_again, new_process, settings, state_of  # noqa: E402
from torchvision import models  # noqa: E402

from patches.support import checkpoint, initial, network, output_folder, saved  # noqa: E402

WIDTH, HEADS, LAYERS, PATCH = 8, 2, 2, 8
POSITIONS = "encoder.pos_embedding"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)
    monkeypatch.setattr(checkpoint, "fit", None)
    for name in "abc":
        Path("data/train", name).mkdir(parents=True)


def vit(size=32, classes=3):
    """A small one; all its numbers are random, also those that begin at 0."""
    model = models.VisionTransformer(size, PATCH, LAYERS, HEADS, WIDTH, 16, num_classes=classes)
    for value in model.parameters():
        torch.nn.init.normal_(value)
    return model.eval()


def arguments(**more):
    names = {"data": "data", "init": "w.pth", "num_classes": None}
    return settings(**{**names, **more})


def loaded(model, capsys, **more) -> str:
    """What loading into the model says, in one line."""
    initial.load(model, arguments(**more))
    (line,) = capsys.readouterr().out.splitlines()
    return line.partition(": ")[2]


def same(model, weights) -> bool:
    own = model.state_dict()
    return own.keys() == weights.keys() and all(torch.equal(own[n], weights[n]) for n in own)


# Whose weights they are


def timms(size=32, classes=3):
    """Random weights of a small ViT under timm's names."""
    shapes = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, (size // PATCH) ** 2 + 1, WIDTH)}
    shapes |= {
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
    }
    for n in range(LAYERS):
        layers = {"norm1": (WIDTH,), "attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
        layers |= {"norm2": (WIDTH,), "mlp.fc1": (16, WIDTH), "mlp.fc2": (WIDTH, 16)}
        for name, shape in layers.items():
            shapes[f"blocks.{n}.{name}.weight"] = shape
            shapes[f"blocks.{n}.{name}.bias"] = shape[:1]
    shapes |= {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    shapes |= {"head.weight": (classes, WIDTH), "head.bias": (classes,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def timms_scores(w, images):
    """What timm's VisionTransformer computes: https://arxiv.org/abs/2010.11929, equations 1 to 4."""

    def norm(x, name):
        return functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-6)

    def line(x, name):
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = functional.conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], PATCH)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["pos_embed"]
    count, length, _ = x.shape
    for n in range(LAYERS):
        at = f"blocks.{n}"
        three = line(norm(x, f"{at}.norm1"), f"{at}.attn.qkv")
        q, k, v = three.reshape(count, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        share = (q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)).softmax(-1)
        x = x + line((share @ v).transpose(1, 2).reshape(x.shape), f"{at}.attn.proj")
        x = x + line(
            functional.gelu(line(norm(x, f"{at}.norm2"), f"{at}.mlp.fc1")), f"{at}.mlp.fc2"
        )
    return line(norm(x, "norm")[:, 0], "head")


@pytest.mark.parametrize("wrap", [dict, lambda w: {"state_dict": w, "arch": "vit_small"}])
def test_weights_of_timm_give_the_scores_that_they_give_there(wrap, capsys):
    weights, model, images = timms(), vit(), torch.randn(4, 3, 32, 32)
    torch.save(wrap(weights), "w.pth")
    assert loaded(model, capsys) == "weights"
    with torch.no_grad():
        assert torch.allclose(model(images), timms_scores(weights, images), atol=1e-4)


@pytest.mark.parametrize("key", [None, "model", "state_dict"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_of_torchvision_are_loaded_whole(key, prefix, capsys):
    torch.manual_seed(1)
    theirs = models.resnet18(num_classes=3)
    state = {prefix + name: value for name, value in theirs.state_dict().items()}
    torch.save({key: state, "epoch": 3} if key else state, "w.pth")
    model = torch.nn.Sequential()
    model.module = models.resnet18(num_classes=3)
    assert loaded(model, capsys, arch="resnet18") == "weights"
    assert same(model.module, theirs.state_dict())


def test_old_files_have_no_count_of_batches_and_some_a_head_for_training_alone(capsys):
    theirs = models.resnet18(num_classes=3).state_dict()
    old = {name: value for name, value in theirs.items() if "num_batches" not in name}
    torch.save(
        {**old, "aux1.conv.weight": torch.ones(1), "AuxLogits.fc.bias": old["fc.bias"]}, "w.pth"
    )
    model = models.resnet18(num_classes=3)
    assert loaded(model, capsys) == "weights" and same(model, theirs)


def test_a_head_of_another_size_is_new_and_a_line_says_so(capsys):
    theirs, model = vit(classes=5), vit()
    torch.save(theirs.state_dict(), "w.pth")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    said = loaded(model, capsys)
    assert said == "weights; heads.head.weight, heads.head.bias start at random, for 3 classes"
    for name, value in model.state_dict().items():
        other = before if name.startswith("heads.") else theirs.state_dict()
        assert torch.equal(value, other[name])


def ours(model, **more):
    """A checkpoint of these scripts."""
    Path("d/train").mkdir(parents=True, exist_ok=True)
    classes = {"classes": ["a", "b", "c"]}
    torch.save({**state_of(model), "state_dict": model.state_dict(), **classes, **more}, "w.pth")


def test_a_checkpoint_of_ours_gives_its_raw_weights_or_the_averaged_ones(capsys):
    raw, model = vit(), vit()
    average = torch.optim.swa_utils.AveragedModel(vit(), use_buffers=True)
    ours(raw)
    assert loaded(model, capsys) == "weights after 3 epochs and 0 steps" and same(
        model, raw.state_dict()
    )
    line = ending(capsys, initial.load, model, arguments(init="w.pth#ema"))
    assert line.endswith("--init w.pth#ema: it has no averaged weights")
    ours(raw, ema=average.state_dict())
    hint = ", not the averaged ones: w.pth#ema would be these"
    assert loaded(model, capsys) == "weights after 3 epochs and 0 steps" + hint
    assert same(model, raw.state_dict())
    said = loaded(model, capsys, init="w.pth#ema")
    assert said == "averaged weights after 3 epochs and 0 steps"
    assert same(model, average.module.state_dict())


def test_as_many_other_classes_are_told_and_never_evaluated(capsys):
    ours(vit(), classes=["a", "b", "d"])
    assert loaded(vit(), capsys).endswith(", for other classes than those in train/")
    line = ending(capsys, initial.load, vit(), arguments(evaluate=True))
    assert line.endswith("for other classes than those in train/: train it first")


# What does not fit

WRONG = {
    "another model": (
        lambda w: models.resnet18().state_dict(),
        "not the weights of tiny: missing ",
    ),
    "a layer less": (
        lambda w: {name: value for name, value in w.items() if "layer_1.ln_1" not in name},
        "missing encoder.layers.encoder_layer_1.ln_1.weight, missing encoder.layers.encoder_layer_1."
        "ln_1.bias",
    ),
    "a layer more": (lambda w: {**w, "pre.bias": torch.ones(2)}, "unexpected pre.bias"),
    "a wider one": (
        lambda w: {**w, "conv_proj.bias": torch.ones(9)},
        "conv_proj.bias is [9], not [8]",
    ),
    "no tensors": (lambda w: {"a": 1}, "it holds other things than weights by name"),
    "nothing": (lambda w: {}, "it holds other things than weights by name"),
    "patches in no square": (
        lambda w: {**w, POSITIONS: torch.ones(1, 12, WIDTH)},
        "encoder.pos_embedding is [1, 12, 8], not [1, 17, 8]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_ends_in_one_line(what, capsys):
    change, said = WRONG[what]
    torch.save(change(vit().state_dict()), "w.pth")
    line = ending(capsys, initial.load, vit(), arguments())
    assert ": error: --init w.pth: " in line and said in line


@pytest.mark.parametrize(
    "more, said",
    [
        ({"init": "none.pth"}, "--init none.pth: No such file or directory"),
        ({"pretrained": True}, "--pretrained starts from other weights; give one of the two"),
        ({"evaluate": True, "num_classes": 4}, "are for other classes: train it first"),
    ],
)
def test_options_that_do_not_fit_end_in_one_line(more, said, capsys):
    torch.save(vit().state_dict(), "w.pth")
    line = ending(capsys, initial.load, vit(classes=more.get("num_classes", 3)), arguments(**more))
    assert line.endswith(said)


def test_the_checkpoint_of_another_model_ends_in_one_line(capsys):
    ours(vit(), arch="vit_b_16")
    line = ending(capsys, initial.load, vit(), arguments())
    assert line.endswith("it is of vit_b_16, --arch says tiny")


def test_a_checkpoint_to_resume_counts(capsys):
    model = vit()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save(vit().state_dict(), "w.pth")
    for more in ({"resume": "x"}, {"init": None}):
        initial.load(model, arguments(**more))
        assert capsys.readouterr().out == "" and same(model, before)
    args = arguments(resume="auto")
    assert checkpoint.to_resume(args) and not checkpoint.resumes(args)
    Path(output_folder.LAST).touch()
    initial.load(model, args)
    assert capsys.readouterr().out == "" and same(model, before)


def test_a_job_may_evaluate_it_without_a_checkpoint():
    checkpoint.check(arguments(evaluate=True))
    assert output_folder.take(vit(), arguments(evaluate=True)) == (None, None)


def work(rank, world, store, results):
    """One of several processes; the file is on the disk of rank 0 alone."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        os.environ["RANK"] = str(rank)
        torch.manual_seed(rank)
        model = models.resnet18(num_classes=3).to(memory_format=torch.channels_last)
        args = arguments(init="w.pth" if rank == 0 else "none.pth", arch="resnet18")
        initial.load(torch.nn.parallel.DistributedDataParallel(model), args)
        own = model.state_dict()
        results.put((rank, [float(own[name].double().abs().sum()) for name in own]))
    finally:
        dist.destroy_process_group()


def test_all_ranks_get_what_rank_0_reads(tmp_path):
    torch.manual_seed(7)
    theirs = models.resnet18(num_classes=3).state_dict()
    torch.save(theirs, "w.pth")
    found = dict(as_ranks(work, 2, tmp_path / "store"))
    expected = [float(value.double().abs().sum()) for value in theirs.values()]
    assert found[0] == found[1] == pytest.approx(expected, rel=1e-12)


# Another size of the images


def corners(value, size):
    """The class token, and the patches in the corners of the square, which stay what they are."""
    side = size // PATCH
    return value[:, [0, 1, side, side * side - side + 1, side * side]]


def test_positions_are_interpolated_between_corners_that_stay(capsys):
    theirs, model = vit(32), vit(48)
    torch.save(theirs.state_dict(), "w.pth")
    assert loaded(model, capsys) == "weights; its position embeddings are interpolated"
    old, new = theirs.encoder.pos_embedding, model.encoder.pos_embedding
    assert new.shape == (1, 37, WIDTH)
    assert torch.allclose(corners(new, 48), corners(old, 32), atol=1e-6)
    model.encoder.pos_embedding = theirs.encoder.pos_embedding
    assert same(model, theirs.state_dict())


def test_positions_in_half_precision_stay_in_it():
    value = initial.positions(vit(48), torch.ones(1, 17, WIDTH, dtype=torch.float16))
    assert value.dtype == torch.float16 and torch.equal(value, torch.ones_like(value))


def stepped(model, kind, steps=3):
    """An optimizer with two groups, the second of which has the positions, after some steps."""
    positions = [model.encoder.pos_embedding]
    others = [value for value in model.parameters() if value is not positions[0]]
    optimizer = kind([{"params": others}, {"params": positions, "weight_decay": 0.0}], lr=0.01)
    for _ in range(steps):
        model(torch.randn(4, 3, model.image_size, model.image_size)).logsumexp(1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


KINDS = {
    "sgd": lambda groups, **more: torch.optim.SGD(groups, momentum=0.9, **more),
    "adamw": lambda groups, **more: torch.optim.AdamW(groups, amsgrad=True, **more),
}


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_size_fits_with_all_that_is_kept(kind, prefix):
    torch.manual_seed(3)
    there, here = vit(32), vit(48)
    old, new = stepped(there, KINDS[kind]), stepped(here, KINDS[kind], steps=0)
    average = torch.optim.swa_utils.AveragedModel(there)
    weights = {prefix + name: value for name, value in there.state_dict().items()}
    state = {"state_dict": weights, "optimizer": old.state_dict(), "ema": average.state_dict()}
    torch.save(state, "old")
    state = torch.load("old", mmap=True, weights_only=True)
    assert initial.fit(here, new, state) == "its position embeddings are interpolated"
    saved.load_weights(here, state, "old")
    saved.load_optimizer(new, state)
    theirs, kept = (
        one.state[model.encoder.pos_embedding] for one, model in ((old, there), (new, here))
    )
    assert theirs.keys() == kept.keys() and len(kept) == {"sgd": 1, "adamw": 4}[kind]
    for name, value in kept.items():
        if name == "step":
            assert value == theirs[name]
            continue
        assert value.shape == (1, 37, WIDTH)
        assert torch.allclose(
            corners(value, 48), corners(theirs[name], 32).clamp(min=-9), atol=1e-6
        )
        assert name not in ("exp_avg_sq", "max_exp_avg_sq") or value.min() >= 0
    pairs = zip(there.parameters(), here.parameters(), strict=True)
    for theirs, mine in pairs:
        if theirs is not there.encoder.pos_embedding:
            assert torch.equal(theirs, mine)
            assert all(torch.equal(v, new.state[mine][n]) for n, v in old.state[theirs].items())
    torch.optim.swa_utils.AveragedModel(here).load_state_dict(state["ema"])
    stepped(here, KINDS[kind])


def test_squares_that_would_be_interpolated_below_0_are_0():
    there, here = vit(32), vit(48)
    old, new = stepped(there, KINDS["adamw"]), stepped(here, KINDS["adamw"], steps=0)
    square = old.state[there.encoder.pos_embedding]["exp_avg_sq"]
    square.zero_()[:, 6] = 1.0  # one patch alone: a cubic swings below 0 around it
    state = {"state_dict": there.state_dict(), "optimizer": old.state_dict()}
    assert initial.positions(here, square).min() < 0
    initial.fit(here, new, state)
    (found,) = [
        kept["exp_avg_sq"]
        for kept in state["optimizer"]["state"].values()
        if kept["exp_avg_sq"].shape == (1, 37, WIDTH)
    ]
    assert found.min() == 0 and found.max() > 0.3


def test_a_checkpoint_of_the_same_size_and_other_models_stay_as_they_are():
    model = vit()
    state = {"state_dict": model.state_dict()}
    assert initial.fit(model, torch.optim.SGD(model.parameters(), 0.1), state) == ""
    assert same(model, state["state_dict"])
    other = models.resnet18(num_classes=3)
    state = {"state_dict": other.state_dict()}
    assert initial.fit(other, torch.optim.SGD(other.parameters(), 0.1), state) == ""


def test_a_run_goes_on_at_another_size_and_says_so(capsys, monkeypatch):
    args = arguments(init=None, resume="old", lr=0.01)
    there, here = vit(32), torch.nn.Sequential()
    here.module = vit(48)
    torch.save(state_of(there, stepped(there, KINDS["adamw"]), args), "old")
    new = stepped(here.module, KINDS["adamw"], steps=0)
    initial.load(here, args)
    checkpoint.start(here, new, args)
    assert (
        ", best Acc@1 50.000; its position embeddings are interpolated" in capsys.readouterr().out
    )
    assert torch.equal(network.unwrap(here).conv_proj.weight, there.conv_proj.weight)
    begin_again(monkeypatch)
    monkeypatch.setattr(checkpoint, "fit", None)  # as scripts without --init have it
    line = ending(capsys, checkpoint.start, here, new, args)
    assert line.endswith("encoder.pos_embedding is [1, 17, 8], not [1, 37, 8]")
