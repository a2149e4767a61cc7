"""Read a checkpoint and compute its validation accuracy anew, in the plainest way, as JSON.

    python recompute.py CHECKPOINT DATA

Run as a process of its own. It uses torchvision alone and nothing that patcher has written: one
process, one image after the other, no sampler and no meter.
"""

import json
import sys
from pathlib import Path

import torch
from torchvision import datasets, models, transforms


def measures(model: torch.nn.Module, folder: Path, classes: "list[str]") -> "dict[str, float]":
    """Acc@1 and Acc@5 in percent, and the mean loss."""
    pipeline = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    images = datasets.ImageFolder(str(folder), transform=pipeline)
    right, loss = {1: 0, 5: 0}, 0.0
    model.eval()
    with torch.no_grad():
        for image, number in images:
            scores = model(image[None])[0]
            label = classes.index(images.classes[number])
            loss -= scores.double().log_softmax(0)[label].item()
            best = scores.topk(min(5, len(scores))).indices.tolist()
            for k in right:
                right[k] += label in best[:k]
    percent = {f"acc{k}": 100 * count / len(images) for k, count in right.items()}
    return {**percent, "loss": loss / len(images)}


def main() -> None:
    path, data = Path(sys.argv[1]), Path(sys.argv[2])
    state = torch.load(path, map_location="cpu", weights_only=True)
    classes = sorted(folder.name for folder in (data / "train").iterdir() if folder.is_dir())
    model = models.get_model(state["arch"], weights=None, num_classes=len(classes))
    model.load_state_dict(state["state_dict"])
    known = {key: state.get(key) for key in ("epoch", "world_size")}
    print(json.dumps({**known, **measures(model, data / "val", classes)}))


if __name__ == "__main__":
    main()
