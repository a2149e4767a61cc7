"""Files of weights: read one, whoever has written it, and find the names that a model has for them.

timm has the names of torchvision for its ResNets, and others for its vision transformers:
https://github.com/huggingface/pytorch-image-models/blob/main/timm/models/vision_transformer.py
"""

import json
import re
from typing import Any

import torch

from . import exporting, saved

LAYER = r"encoder.layers.encoder_layer_\1."
# Names that a model does not have, and what it may call them: timm's, and torchvision's old ones.
NAMES = (
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^blocks\.(\d+)\.norm([12])\.", LAYER + r"ln_\2."),
    (r"^blocks\.(\d+)\.attn\.qkv\.", LAYER + "self_attention.in_proj_"),
    (r"^blocks\.(\d+)\.attn\.proj\.", LAYER + "self_attention.out_proj."),
    (r"^blocks\.(\d+)\.mlp\.fc1\.", LAYER + "mlp.0."),
    (r"^blocks\.(\d+)\.mlp\.fc2\.", LAYER + "mlp.3."),
    (r"^norm\.", "encoder.ln."),
    (r"^head\.", "heads.head."),
    (r"\.mlp\.linear_1\.", ".mlp.0."),
    (r"\.mlp\.linear_2\.", ".mlp.3."),
    (r"\.(norm|conv)\.([12])\.", r".\1\2."),
)
TYPES = {name: kind for kind, name in exporting.TYPES.items()}


def read(path: str, trusted: bool) -> "dict[str, Any]":
    """What is in a .safetensors, or in a file of torch.save; ValueError or OSError says why not.

    Code in the file runs only if it is `trusted`.
    """
    with open(path, "rb") as file:  # what the system says is clearer than what torch makes of it
        if path.endswith(".safetensors"):
            return safetensors(bytearray(file.read()))
    found = saved.load(path, trusted)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not weights by name")
    return found


def safetensors(data: bytearray) -> "dict[str, torch.Tensor]":
    """The tensors of such a file, which share its memory; ValueError if it is not whole.

    https://github.com/huggingface/safetensors#format
    """
    start, found = 8 + int.from_bytes(data[:8], "little"), {}
    try:
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, one in header.items():
            kind, (first, last) = TYPES[one["dtype"]], one["data_offsets"]
            value = torch.empty(0, dtype=kind)
            if last > first:
                count = (last - first) // kind.itemsize
                value = torch.frombuffer(data, dtype=kind, count=count, offset=start + first)
            found[name] = value.reshape(one["shape"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"not a whole safetensors file: {error}") from None
    return found


def renamed(weights: "dict[str, Any]", own: "dict[str, Any]") -> "dict[str, Any]":
    """Weights under the names that the model's `own` have, if they have others for them."""
    weights = saved.strip_wrappers(weights, own)
    return {own_name(name, own): value for name, value in weights.items()}


def own_name(name: str, own: "dict[str, Any]") -> str:
    """What the model calls it; the name itself if the model has it, or nothing that it may mean."""
    names = [name, *(re.sub(pattern, new, name) for pattern, new in NAMES)]
    return next((one for one in names if one in own), name)
