"""Images have the size of the model, or that of the command line; see test_support_sizes.py."""

from builds import run_worker
from torchvision import transforms

GIVEN = ["--image-size", "64", "--val-resize", "80", "--interpolation", "bicubic"]


def steps(loader) -> list:
    """The first two transforms of a loader's images."""
    dataset = loader.dataset
    return getattr(dataset, "images", dataset).transform.transforms[:2]


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for argv, numbers, mode in (
            ([], [224, 256, 224], "bilinear"),
            (GIVEN, [64, 80, 64], "bicubic"),
            (["--arch", "inception_v3"], [299, 342, 299], "bilinear"),
        ):
            monkeypatch.setattr(module.network, "check", lambda args: None)  # by another patch
            more = ["--exact-transforms"]  # which leaves them where they are
            training, validation = run_worker(module, monkeypatch, *argv, *more).loaders
            crop, (resize, center) = steps(training)[0], steps(validation)
            assert (crop.size, resize.size, center.size) == (
                (numbers[0],) * 2,
                numbers[1],
                (numbers[2],) * 2,
            )
            expected = transforms.InterpolationMode(mode)
            assert crop.interpolation == resize.interpolation == expected
