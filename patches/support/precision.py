"""The numbers that a model computes with: bfloat16 or float16 where a device does so fast.

Weights, gradients and the optimizer stay in float32, and so do a checkpoint, loss and accuracy.
"""

import functools
import inspect
from typing import Any

import torch
import torch.nn as nn

from . import ranks
from .terminal import exit_with_error, print_once

KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "off": None}

_dtype: "torch.dtype | None" = None  # of the matrix products and convolutions; None for float32
_scaler: "torch.amp.GradScaler | None" = None  # for float16 alone


def add_options(parser):
    parser.add_argument(
        "--amp",
        default=None,
        choices=KINDS,
        help="what the model computes in: bf16, fp16, or off for float32 throughout (default: bf16 "
        "if the devices compute it fast, else off)",
    )


def begin(run, device: torch.device, args):
    """Choose what the model computes in, and say so in one line. Collective.

    Without --amp it is bf16 if it is fast on the devices of all ranks. For fp16 the `run` keeps the
    scale of the loss. What the device cannot do ends the job in one line.
    """
    global _dtype, _scaler
    kind, why = args.amp, ""
    if kind is None:
        fast = all(ranks.gathered(is_bf16_fast(device)))
        kind, does = ("bf16", "computes") if fast else ("off", "does not compute")
        why = f"; --amp is not given, and this {device.type} {does} bf16 fast"
    _dtype, _scaler = KINDS[kind], None
    if _dtype is None:
        print_once(f"precision: float32{why}")
        return
    problem = why_impossible(device, _dtype)
    if problem:
        exit_with_error(f"--amp {kind}: torch cannot train with it on {device.type}: {problem}")
    torch.set_float32_matmul_precision("high")  # of what remains: TensorFloat32 if there is any
    if _dtype is torch.float16:
        _scaler = torch.amp.GradScaler(device.type)
        run.keep("scaler", _scaler)
    print_once(f"precision: {kind}, with weights, loss and accuracy in float32{why}")


def is_bf16_fast(device: torch.device) -> bool:
    """Whether the device has units for products of bfloat16; one that torch cannot ask has none."""
    if device.type == "cuda":
        known = inspect.signature(torch.cuda.is_bf16_supported).parameters
        own = {"including_emulation": False} if "including_emulation" in known else {}
        return torch.cuda.get_device_capability(device) >= (8, 0) and bool(
            torch.cuda.is_bf16_supported(**own)
        )
    fast = {"amx_bf16", "avx512_bf16", "bf16"}  # the last one is ARM's
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and not fast.isdisjoint(cpu_features())
    )


def cpu_features(path: str = "/proc/cpuinfo") -> "set[str]":
    """What the processor can do, by the names that Linux has for it; none on other systems."""
    try:
        with open(path) as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return set()
    return {word for name, _, words in lines if _is_features(name) for word in words.split()}


def _is_features(name: str) -> bool:
    return name.strip() in ("flags", "Features")


def why_impossible(device: torch.device, dtype: torch.dtype) -> "str | None":
    """Why a small model cannot be trained in `dtype` on this device, in one line, or None."""
    try:
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
        with torch.autocast(device.type, dtype):
            scores = model.to(device)(torch.ones(2, 1, 3, 3, device=device))
        if scores.dtype is not dtype:
            return f"it computes {scores.dtype} instead"
        scores.float().sum().backward()
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0]
    return None


def forward(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """The scores of the model, one row an image, in float32, whatever it computes in."""
    if _dtype is None:
        scores: torch.Tensor = model(inputs)
        return scores
    if isinstance(model, nn.DataParallel):
        let_replicas_cast(model)
    return torch.Tensor.float(cast(model, inputs))


def cast(model, inputs: torch.Tensor, **named):
    """What `model` gives if its products are computed in the chosen type."""
    with torch.autocast(inputs.device.type, _dtype):
        return model(inputs, **named)


def let_replicas_cast(model: "nn.DataParallel[Any]"):
    """Let each replica compute in the chosen type.

    They run in threads. There torch knows that there is autocast, and takes float16 as its type.
    """
    if "parallel_apply" not in vars(model):
        apply: Any = model.parallel_apply

        def parallel_apply(replicas, inputs, named):
            return apply([functools.partial(cast, one) for one in replicas], inputs, named)

        vars(model)["parallel_apply"] = parallel_apply


def backward(loss: torch.Tensor):
    """`loss.backward()`; the gradients of float16 are scaled up until the step."""
    (loss if _scaler is None else _scaler.scale(loss)).backward()


def unscale(optimizer: torch.optim.Optimizer):
    """Take the scale of float16 from the gradients, once before `step`: to read or change them."""
    if _scaler is not None:
        _scaler.unscale_(optimizer)


def step(optimizer: torch.optim.Optimizer):
    """`optimizer.step()`; if a gradient of float16 is not finite, there is none, and a new scale.

    Afterwards the gradients have no scale.
    """
    if _scaler is None:
        optimizer.step()
    else:
        _scaler.step(optimizer)
        _scaler.update()
