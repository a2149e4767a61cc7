"""Models as torchvision's builders make them, tried with the shapes alone before one is made."""

import contextlib
import warnings

import torch
import torch.nn as nn
from torchvision import models, ops


def new_model(arch: str, outputs: int, depth: "float | None" = None, **more) -> nn.Module:
    """A model with random weights, without what torchvision warns of how they are drawn.

    depth    the largest probability of its stochastic depth, for builders that take none: other
             blocks keep their share of it
    more     keywords of its builder
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = models.get_model(arch, num_classes=outputs, **more)
    if depth is not None:
        most = max_depth(model)
        for part in model.modules():
            if isinstance(part, ops.StochasticDepth):
                part.p *= depth / most
    return model


def max_depth(model: nn.Module) -> float:
    """The largest probability with which one of its blocks is left out; 0 if none ever is."""
    parts = [part for part in model.modules() if isinstance(part, ops.StochasticDepth)]
    return max((part.p for part in parts), default=0.0)


@contextlib.contextmanager
def on_meta():
    """In this context a new model has shapes alone, on the meta device: it takes no memory."""

    def moved(convert):
        return lambda module, name, value: value if value is None else convert(value.to("meta"))

    hooks = [
        nn.modules.module.register_module_parameter_registration_hook(moved(nn.Parameter)),
        nn.modules.module.register_module_buffer_registration_hook(moved(lambda value: value)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def takes(arch: str, **keywords) -> bool:
    """Whether the builder of `arch` has these keywords; what it says of their values is later."""
    try:
        with on_meta():
            new_model(arch, 1000, **keywords)
    except TypeError:
        return False
    except (AssertionError, ValueError):  # such as a size that patches do not divide
        return True
    return True


def why_unusable(
    arch: str, outputs: int, training: bool = True, size: int = 224, **more
) -> "str | None":
    """Why images of `size` x `size` and this loss cannot train, or evaluate, `arch`, or None.

    Some models have more outputs in training. `more` is as `new_model` has it.
    """
    try:
        with on_meta():
            model = new_model(arch, outputs, **more)
        output = model.train(training)(torch.empty(2, 3, size, size, device="meta"))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        return f"it does not take images of {size} x {size} ({reason})"
    if not isinstance(output, torch.Tensor):
        mode = "training" if training else "evaluation"
        return f"in {mode} it gives {type(output).__name__}, the loss takes one tensor"
    return None
