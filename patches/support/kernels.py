"""Kernels that torch has for some devices alone: channels-last convolutions, fused updates."""

import torch
import torch.nn as nn


def layout_of(model: nn.Module, device: torch.device, args) -> torch.memory_format:
    """How the weights of `model` should lie in the memory of `device`.

    Channels last if it has convolutions, more than the one that cuts an image into patches, and the
    device has kernels for that: the CPU, and GPUs with tensor cores. Else as they lie, and so with
    --amp off, since losses are to be those of `standard` then: these kernels round in another way.
    """
    if getattr(args, "amp", None) == "off":
        return torch.preserve_format
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in model.modules())
    fast = device.type == "cpu"
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (7, 0)
    return torch.channels_last if convolutions > 1 and fast else torch.preserve_format


def fused_or_none(model: nn.Module, kind: str = "SGD") -> "bool | None":
    """Whether torch.optim's `kind`, SGD or AdamW, can update all weights of `model` in one kernel.

    None if not, so torch chooses. Asked by trying: versions of torch have it for other devices.
    """
    weight = torch.zeros(2, device=next(model.parameters()).device, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    try:
        getattr(torch.optim, kind)([weight], 0.1, fused=True, **options).step()
    except RuntimeError:
        return None
    return True


def align(optimizer: torch.optim.Optimizer):
    """Let momentum and gradients lie in memory as their weights do, in every step of `optimizer`.

    A fused update reads them side by side, whatever their strides say: with the momentum of a
    checkpoint in another layout it would be wrong on the CPU, and refused on a GPU.
    """
    for weight, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, torch.Tensor):
                kept[name] = _as_in(weight, value)
    optimizer.register_step_pre_hook(_align_gradients)


def _align_gradients(optimizer, args, named):
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None and weight.grad.stride() != weight.stride():
                weight.grad = _as_in(weight, weight.grad)


def _as_in(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`value` with the strides of `weight`; itself if it has them, or another shape."""
    if value.shape != weight.shape or value.stride() == weight.stride():
        return value
    return torch.empty_like(weight).copy_(value)
