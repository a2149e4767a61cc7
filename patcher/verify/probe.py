"""What torch says of this machine, as JSON; run as a process of its own.

python probe.py ARCH
"""

import difflib
import json
import sys


def devices() -> "tuple[str, list[dict[str, object]]]":
    """The kind of device that the built scripts choose, and name and memory of each, in bytes."""
    import torch

    accelerator = getattr(torch, "accelerator", None)
    if torch.cuda.device_count() > 0:
        kind = "cuda"
    elif accelerator is not None and accelerator.is_available():
        kind = accelerator.current_accelerator().type
    else:
        return "cpu", []
    if kind != "cuda":
        return kind, [{"name": kind}] * getattr(torch, kind).device_count()
    found: list[dict[str, object]] = []
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        found.append({"name": name, "free": free, "total": total})
    return kind, found


def main() -> None:
    arch = sys.argv[1]
    import torch
    import torchvision
    from torchvision import models

    known = models.list_models(module=models)
    kind, found = devices()
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "torchvision": torchvision.__version__,
                "kind": kind,
                "devices": found,
                "known": arch in known,
                "close": difflib.get_close_matches(arch, known),
            }
        )
    )


if __name__ == "__main__":
    main()
