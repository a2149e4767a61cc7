"""--export-weights: the best weights as safetensors, which programs read without running code.

https://github.com/huggingface/safetensors#format
"""

import json
import os
from typing import Any

import torch

from . import files, saved
from .output_folder import BEST, WEIGHTS

TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
TYPES |= {torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"}
TYPES |= {torch.uint8: "U8", torch.bool: "BOOL"}


def add_options(parser):
    parser.add_argument(
        "--export-weights",
        action="store_true",
        help="also write the weights of the best checkpoint, alone, as model_best.safetensors",
    )


def best(is_new: bool, args):
    """With --export-weights: write those of the best checkpoint, if it is new or never was.

    With --ema they are the averaged ones, which made it the best.
    """
    if not args.export_weights or not os.path.exists(BEST):
        return
    if os.path.exists(WEIGHTS) and not is_new:
        return
    state = saved.load(BEST, trusted=False)
    weights, average = state["state_dict"], state.get("ema")
    if average and int(average["n_averaged"]):
        weights = {n.removeprefix("module."): v for n, v in average.items() if n != "n_averaged"}
    said = {"arch": state["arch"], "epochs": state["epoch"], "acc1": state["best_acc1"]}
    write(WEIGHTS, weights, {**said, "classes": state["classes"]})


def write(path: str, tensors: "dict[str, torch.Tensor]", said):
    """Write tensors by name, and what else is to be `said` of them, as JSON."""
    header: dict[str, Any] = {"__metadata__": {n: json.dumps(value) for n, value in said.items()}}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.numel() * value.element_size()
        kind, shape = TYPES[value.dtype], [*value.shape]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    with files.atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
