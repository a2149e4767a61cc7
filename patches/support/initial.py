"""--init: the weights that a run starts from, and how those of another image size fit."""

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import interpolate_embeddings

from . import checkpoint, network, ranks, saved, weight_files
from .folders import class_names
from .terminal import exit_with_error, print_once

AVERAGED = "#ema"  # behind the name of a file
POSITIONS = "encoder.pos_embedding"
SQUARES = ("exp_avg_sq", "max_exp_avg_sq")  # of AdamW, and never negative
AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")  # heads that serve training alone


def add_options(parser):
    parser.add_argument(
        "--init",
        default=None,
        metavar="FILE",
        help="start from the weights in this file: a checkpoint of these scripts, or weights of "
        "torchvision or timm for the same architecture; FILE#ema: from its averaged ones",
    )


def load(model: nn.Module, args):
    """Load --init into `model`, whatever it is wrapped in, and say in a line what that was.

    Collective: rank 0 reads the file, and the others get what it has. If --resume finds a
    checkpoint, that one counts; it may be of another image size. What does not fit ends the job.
    """
    checkpoint.fit = fit
    wanted = bool(args.init) and not checkpoint.resumes(args)
    said, problem = "", None
    if wanted and ranks.is_rank_zero():
        try:
            said = load_file(network.unwrap(model), args)
        except (ValueError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            problem = f"--init {args.init}: {reason}"
    wanted, problem = ranks.broadcast((wanted, problem))
    if problem:
        exit_with_error(problem)
    if wanted and ranks.has_process_group():
        for value in network.unwrap(model).state_dict().values():
            whole = value.contiguous()  # NCCL may refuse channels-last memory
            dist.broadcast(whole, 0)
            value.copy_(whole)
    if wanted:
        print_once(said)


def load_file(model: nn.Module, args) -> str:
    """Load --init into a model without wrappers; the line that says what it was.

    ValueError or OSError says why it cannot be.
    """
    if args.pretrained:
        raise ValueError("--pretrained starts from other weights; give one of the two")
    weights, what = weights_in(args)
    own, outputs, said = model.state_dict(), network.classes(args), [f"--init {args.init}: {what}"]
    weights = weight_files.renamed(weights, own)
    if not any(name.startswith(AUXILIARY) for name in own):
        weights = {n: value for n, value in weights.items() if not n.startswith(AUXILIARY)}
    fitting = positions(model, weights.get(POSITIONS))
    if fitting is not None:
        weights[POSITIONS] = fitting
        said.append("its position embeddings are interpolated")
    head = [name for name in weights if is_other_head(weights[name], own.get(name), outputs)]
    weights = {name: value for name, value in weights.items() if name not in head}
    counted = [name for name in own if name.endswith("num_batches_tracked")]  # not in old files
    wrong = saved.misfits(weights, own, spare=(*head, *counted))
    if wrong:
        raise ValueError(f"not the weights of {args.arch}: {saved.some(wrong)}")
    if head and args.evaluate:
        raise ValueError(f"{', '.join(head)} are for other classes: train it first")
    model.load_state_dict(weights, strict=False)
    if head:
        said.append(f"{', '.join(head)} start at random, for {outputs} classes")
    return "; ".join(said)


def is_other_head(value: torch.Tensor, own: "torch.Tensor | None", outputs: int) -> bool:
    """Whether these are weights of a last layer with another number of outputs."""
    if own is None or own.dim() == 0 or value.shape[1:] != own.shape[1:]:
        return False
    return value.shape != own.shape and len(own) == outputs


def weights_in(args) -> "tuple[dict[str, torch.Tensor], str]":
    """The weights in --init, under the names that they have there; what they are, in words."""
    path = args.init.removesuffix(AVERAGED)
    state, what = weight_files.read(path, args.trust_checkpoint), "weights"
    if "format" in state:  # ours
        if state["arch"] != args.arch:
            raise ValueError(f"it is of {state['arch']}, --arch says {args.arch}")
        what += f" after {state['epoch']} epochs and {state['step']} steps"
        here, there = class_names(os.path.join(args.data, "train")), state["classes"]
        if here != there and len(here) == len(there):
            what += ", for other classes than those in train/"
            if args.evaluate:
                raise ValueError(f"it holds {what}: train it first")
    averaged = next((state[key] for key in ("ema", "model_ema") if key in state), None)
    if path != args.init:
        if averaged is None:
            raise ValueError("it has no averaged weights")
        found = {n: value for n, value in averaged.items() if n != "n_averaged"}
        return found, f"averaged {what}"
    if averaged is not None:
        what += f", not the averaged ones: {path}{AVERAGED} would be these"
    for key in ("state_dict", "model"):
        state = state[key] if isinstance(state.get(key), dict) else state
    if not state or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError("it holds other things than weights by name")
    return state, what


def positions(model: nn.Module, value: "torch.Tensor | None") -> "torch.Tensor | None":
    """Position embeddings (1, 1 + patches, width), interpolated to the patches that `model` has.

    None if it has no such, or they fit, or no square of patches has so many.
    """
    if value is None or not isinstance(model, VisionTransformer):
        return None
    if value.shape == model.encoder.pos_embedding.shape:
        return None
    state: Any = {POSITIONS: value.float()}
    try:
        found = interpolate_embeddings(model.image_size, model.patch_size, state)[POSITIONS]
    except ValueError:
        return None
    return torch.Tensor.to(found, value.dtype)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, state: "dict[str, Any]") -> str:
    """Make a checkpoint of another image size fit: its positions and what is kept of them.

    The averages of gradients, of their squares and of the weights are interpolated as the weights
    are; squares stay 0 or more. What was done, for a message; empty if nothing.
    """
    model = network.unwrap(model)
    weights = saved.strip_wrappers(state["state_dict"], model.state_dict())
    old = weights.get(POSITIONS)
    fitting = positions(model, old)
    if old is None or fitting is None:
        return ""
    state["state_dict"] = {**weights, POSITIONS: fitting}
    kept = [state.get("ema", {})]
    if "optimizer" in state:
        ours = [value for group in optimizer.param_groups for value in group["params"]]
        theirs = [n for group in state["optimizer"]["param_groups"] for n in group["params"]]
        parameter = model.get_parameter(POSITIONS)
        at = [n for n, value in zip(theirs, ours) if value is parameter]
        kept += [state["optimizer"]["state"].get(n, {}) for n in at]
    for things in kept:
        for name, value in things.items():
            if isinstance(value, torch.Tensor) and value.shape == old.shape:
                new = positions(model, value)
                things[name] = new.clamp(min=0) if name in SQUARES and new is not None else new
    return "its position embeddings are interpolated"
