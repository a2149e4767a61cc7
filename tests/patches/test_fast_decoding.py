"""Images come as bytes and are normalised on the device; `test_support_pixels.py` has the rest."""

from pathlib import Path

import pytest
import torch
from builds import data_set, run_loop, run_worker
from PIL import Image


def images() -> str:
    """A data set of three classes with a photograph-sized JPEG each, and one file that is none."""
    folder = data_set()
    for path in Path(folder).glob("*/[ab]/0.jpg"):
        Image.linear_gradient("L").resize((300, 260)).convert("RGB").save(path)
    return folder


def serves(distributed, dataparallel, monkeypatch):
    folder = images()
    for module in (distributed, dataparallel):
        training, validation = run_worker(module, monkeypatch, "--data", folder).loaders
        for dataset in (training.dataset.images, validation.dataset):
            pixels, label = dataset[1]
            assert (pixels.dtype, pixels.shape, label) == (torch.uint8, (224, 224, 3), 1)
            assert pixels.is_contiguous()
            with pytest.raises(RuntimeError, match=r"^cannot decode .*/c/0\.jpg: "):
                dataset[2]
        for name in ("train", "validate"):
            seen = []
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 6))
            model.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
            batch = torch.full((4, 2, 2, 3), 51, dtype=torch.uint8)  # a fifth of white
            labels = torch.tensor([0, 1, 2, 3])
            run_loop(module, name, monkeypatch, model, [(batch, labels)])
            (inputs,) = seen
            assert inputs.shape == (4, 3, 2, 2)
            assert inputs.is_contiguous(memory_format=torch.channels_last)
            colours = [(0.2 - 0.485) / 0.229, (0.2 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
            torch.testing.assert_close(inputs[0, :, 1, 1], torch.tensor(colours))
        exact = run_worker(module, monkeypatch, "--data", folder, "--exact-transforms").loaders
        for dataset in (exact[0].dataset.images, exact[1].dataset):
            assert (dataset[1][0].dtype, dataset[1][0].shape) == (torch.float32, (3, 224, 224))
