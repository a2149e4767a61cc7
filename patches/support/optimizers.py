"""The optimizer, and which weights decay.

Weight decay pulls the factors of a product towards 0. What is only added to something, and the
scale of a norm, is not meant by it: biases, norms, class tokens, position embeddings. torchvision's
published recipe of ResNet50 leaves out the norms, that of ViT decays all.
"""

import argparse
from typing import Any

import torch
import torch.nn as nn

from . import kernels
from .terminal import exit_with_error

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# As torchvision's models call them: ViT has the first two, Swin and MaxViT have the last.
TOKENS = ("class_token", "pos_embedding", "relative_position_bias_table")


def add_options(parser):
    parser.add_argument(
        "--opt",
        default="sgd",
        choices=("sgd", "adamw"),
        help="the optimizer: sgd with --momentum, or adamw with --betas (default: sgd)",
    )
    parser.add_argument(
        "--betas",
        default=(0.9, 0.999),
        type=beta,
        nargs=2,
        metavar=("B1", "B2"),
        help="adamw: how much of its two averages stays in a step, that of the gradient and that "
        "of its square (default: 0.9 0.999)",
    )
    parser.add_argument(
        "--decay",
        default=None,
        choices=("all", "weights"),
        help="what weight decay is for: all, or the weights alone, without biases, norms, class "
        "tokens and position embeddings (default: all with sgd, weights with adamw)",
    )


def beta(text: str) -> float:
    """A number of --betas; at 1 an average would stay what it is, and torch refuses it."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected 0 to 1, without 1, found {text}")
    return value


def build(model: nn.Module, args) -> torch.optim.Optimizer:
    """The optimizer of --opt for all parameters of `model`, in one kernel if torch has one.

    It has one group of parameters, in the order of the model; with `--decay weights` two, those
    that decay and then those that do not. A checkpoint of another kind of optimizer, or of other
    groups, ends the job in one line, since its state goes by the place of each parameter.
    """
    parameters: Any = model.parameters()
    if (args.decay or ("weights" if args.opt == "adamw" else "all")) == "weights":
        parameters = groups(model)
    optimizer: torch.optim.Optimizer
    if args.opt == "adamw":
        optimizer = torch.optim.AdamW(
            parameters,
            lr=args.lr,
            betas=tuple(args.betas),
            weight_decay=args.weight_decay,
            fused=kernels.fused_or_none(model, "AdamW"),
        )
    else:
        optimizer = torch.optim.SGD(
            parameters,
            lr=args.lr,
            momentum=args.momentum,
            weight_decay=args.weight_decay,
            fused=kernels.fused_or_none(model),
        )
    optimizer.register_load_state_dict_pre_hook(fitting)
    return optimizer


def groups(model: nn.Module) -> "list[dict[str, Any]]":
    """The parameters of `model` in two groups: those that decay, and those that do not.

    Each is in one of them once, in the order of the model. A group that would be empty is left out.
    """
    never = {
        id(value)
        for module in model.modules()
        for name, value in module.named_parameters(recurse=False)
        if isinstance(module, NORMS) or name.endswith("bias") or name in TOKENS
    }
    decaying = [value for value in model.parameters() if id(value) not in never]
    others = [value for value in model.parameters() if id(value) in never]
    found: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return [group for group in found if group["params"]]


def fitting(optimizer, state: "dict[str, Any]") -> "dict[str, Any]":
    """The state of a checkpoint, ready for `optimizer`; the job ends if it is of another kind.

    Where torch puts the steps that AdamW counts depends on the kernel: here that of `optimizer`.
    """
    own = optimizer.param_groups
    if kind(state["param_groups"]) != kind(own):
        exit_with_error(
            "--resume: the optimizer of the checkpoint is of another kind: "
            f"it has {described(state['param_groups'])}, this run {described(own)}; "
            "give the --opt and --decay of that run"
        )
    named = zip(state["param_groups"], own)
    return {**state, "param_groups": [{**old, "fused": new["fused"]} for old, new in named]}


def kind(param_groups) -> "list[tuple[bool, int]]":
    """Whether each group is one of AdamW, and how many parameters it has."""
    return [("betas" in group, len(group["params"])) for group in param_groups]


def described(param_groups) -> str:
    """An optimizer in a few words, such as `sgd for 62 parameters` or `adamw for 50 + 102`."""
    name = "adamw" if "betas" in param_groups[0] else "sgd"
    return (
        f"{name} for {' + '.join(str(len(group['params'])) for group in param_groups)} parameters"
    )
