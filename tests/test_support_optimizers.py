"""`support.optimizers`: each optimizer with the groups that decay, and its state in a checkpoint."""

import argparse

import pytest

torch = pytest.importorskip("torch")

from torchvision import models  # noqa: E402

from patches.support import kernels, optimizers  # noqa: E402

nn = torch.nn


def args_of(*argv, lr=0.1, momentum=0.9, weight_decay=0.05):
    parser = argparse.ArgumentParser()
    optimizers.add_options(parser)
    numbers = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
    return argparse.Namespace(**vars(parser.parse_args(argv)), **numbers)


def on_meta(arch):
    with torch.device("meta"):
        return models.get_model(arch)


def names(model):
    """The names of the parameters that decay, and of those that do not."""
    called = {id(value): name for name, value in model.named_parameters()}
    found = optimizers.groups(model)
    assert found[1]["weight_decay"] == 0 and "weight_decay" not in found[0]
    return [[called[id(value)] for value in group["params"]] for group in found]


def test_by_default_the_optimizer_is_that_of_upstream():
    model = nn.Linear(2, 3)
    optimizer = optimizers.build(model, args_of(momentum=0.75))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.75, weight_decay=0.05)
    (ours,), (theirs,) = optimizer.param_groups, plain.param_groups
    assert type(optimizer) is torch.optim.SGD
    assert ours["params"] == theirs["params"]
    assert {**ours, "fused": None} == {**theirs, "fused": None}


@pytest.mark.parametrize(
    "argv, counts",
    [
        ((), [2]),
        (("--decay", "weights"), [1, 1]),
        (("--opt", "adamw"), [1, 1]),
        (("--opt", "adamw", "--decay", "all"), [2]),
    ],
)
def test_all_decays_with_sgd_and_weights_with_adamw_unless_said_otherwise(argv, counts):
    found = optimizers.build(nn.Linear(2, 3), args_of(*argv)).param_groups
    assert [len(group["params"]) for group in found] == counts
    assert [group["weight_decay"] for group in found] == [0.05, 0.0][: len(counts)]
    assert all(group["lr"] == 0.1 for group in found)


def test_of_a_vision_transformer_only_products_decay():
    """ViT-B/16 has 12 blocks with 4 matrices each, the patches' convolution and the head."""
    decaying, others = names(on_meta("vit_b_16"))
    assert len(decaying) == 12 * 4 + 2
    assert all(name.endswith("weight") for name in decaying)
    assert not any(".ln" in name for name in decaying)
    assert "class_token" in others and "encoder.pos_embedding" in others
    assert len(decaying) + len(others) == 152


@pytest.mark.parametrize("arch", ["resnet50", "shufflenet_v2_x0_5", "mobilenet_v3_small"])
def test_of_a_convolutional_net_exactly_the_weights_with_more_than_one_dimension_decay(arch):
    """The rule of timm and others, which look at the shape: here both give the same."""
    model = on_meta(arch)
    shapes = {name: value.ndim for name, value in model.named_parameters()}
    decaying, others = names(model)
    assert decaying == [name for name in shapes if shapes[name] > 1]
    assert others == [name for name in shapes if shapes[name] <= 1]


def test_the_tables_of_relative_positions_do_not_decay():
    decaying, others = names(on_meta("swin_t"))
    assert sum(name.endswith("relative_position_bias_table") for name in others) == 12
    assert all(name.endswith("weight") for name in decaying)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(4), nn.SyncBatchNorm(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4)],
)
def test_no_norm_decays_whatever_wraps_the_model(norm):
    model = nn.ModuleDict({"module": nn.Sequential(nn.Linear(4, 4, bias=False), norm)})
    decaying, others = names(model)
    assert decaying == ["module.0.weight"] and "module.1.weight" in others


def test_a_weight_in_two_places_is_in_one_group_once_and_none_is_empty():
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    (group,) = optimizers.groups(tied)
    assert group["params"] == [tied[0].weight]


def test_adamw_steps_as_its_definition_says_in_float64():
    """Loshchilov and Hutter 2019, algorithm 2, by hand; the bias does not decay."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    args = args_of("--opt", "adamw", "--betas", "0.8", "0.95", lr=0.01, weight_decay=0.3)
    optimizer = optimizers.build(model, args)
    expected = {name: value.detach().clone() for name, value in model.named_parameters()}
    means = {name: [torch.zeros_like(value)] * 2 for name, value in expected.items()}
    for step in range(1, 6):
        for name, value in model.named_parameters():
            value.grad = torch.randn_like(value)
            first, second = means[name]
            first = 0.8 * first + 0.2 * value.grad
            second = 0.95 * second + 0.05 * value.grad**2
            means[name] = [first, second]
            decay = 0.3 if name == "weight" else 0
            ahead = first / (1 - 0.8**step) / ((second / (1 - 0.95**step)).sqrt() + 1e-8)
            expected[name] = expected[name] * (1 - 0.01 * decay) - 0.01 * ahead
        optimizer.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-10, atol=1e-12)


def stepped(model, optimizer, count, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for value in model.parameters():
            value.grad = torch.randn(value.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("argv", [(), ("--decay", "weights"), ("--opt", "adamw")])
def test_an_optimizer_goes_on_from_its_state_bit_for_bit(argv):
    whole = nn.Conv2d(3, 4, 3)
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    optimizer = optimizers.build(whole, args_of(*argv))
    stepped(whole, optimizer, 3, 1)
    halfway, state = {k: v.clone() for k, v in whole.state_dict().items()}, optimizer.state_dict()
    assert not torch.equal(start["weight"], halfway["weight"])
    resumed = nn.Conv2d(3, 4, 3)
    resumed.load_state_dict(halfway)
    other = optimizers.build(resumed, args_of(*argv))
    # Saved where there was no fused kernel; then torch keeps the steps elsewhere.
    state["param_groups"] = [{**group, "fused": None} for group in state["param_groups"]]
    state["state"] = {
        n: {k: v.clone() if torch.is_tensor(v) else v for k, v in kept.items()}
        for n, kept in state["state"].items()
    }
    other.load_state_dict(state)
    kernels.align(other)
    assert [group["fused"] for group in other.param_groups] == [True] * len(other.param_groups)
    stepped(whole, optimizer, 2, 2)
    stepped(resumed, other, 2, 2)
    assert torch.equal(whole.weight, resumed.weight) and torch.equal(whole.bias, resumed.bias)


@pytest.mark.parametrize(
    "argv, words",
    [
        (("--opt", "adamw"), "it has sgd for 2 parameters, this run adamw for 1 + 1 parameters"),
        (("--opt", "adamw", "--decay", "all"), "this run adamw for 2 parameters"),
        (("--decay", "weights"), "this run sgd for 1 + 1 parameters"),
    ],
)
def test_state_of_another_optimizer_is_refused_in_one_line(argv, words, capsys):
    model = nn.Linear(2, 2)
    state = optimizers.build(model, args_of()).state_dict()
    with pytest.raises(SystemExit) as ended:
        optimizers.build(model, args_of(*argv)).load_state_dict(state)
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1) and words in err


@pytest.mark.parametrize("given", ["1", "-0.1", "nan", "inf"])
def test_betas_out_of_their_range_are_refused(given, capsys):
    with pytest.raises(SystemExit) as ended:
        args_of("--betas", "0.9", given)
    assert ended.value.code == 2
    assert f"expected 0 to 1, without 1, found {given}" in capsys.readouterr().err


def test_without_a_fused_adamw_torch_chooses(monkeypatch):
    def adamw(*args, **named):
        raise RuntimeError("`fused=True` requires all the params to be on supported devices")

    assert kernels.fused_or_none(nn.Linear(1, 1), "AdamW") is True
    monkeypatch.setattr("torch.optim.AdamW", adamw)
    assert kernels.fused_or_none(nn.Linear(1, 1), "AdamW") is None
    assert kernels.fused_or_none(nn.Linear(1, 1)) is True
