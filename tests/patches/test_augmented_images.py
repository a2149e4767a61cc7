"""Training images are augmented where torchvision's recipes do it; validation images never are."""

from builds import run_worker
from torchvision import transforms

NAMES = ["RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"]
GIVEN = ["--augment", "ra", "--ra-magnitude", "5", "--random-erase", "0.25"]


def steps(loader) -> list:
    dataset = loader.dataset
    return getattr(dataset, "images", dataset).transform.transforms


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        exact = ["--exact-transforms"]  # which leaves them where they are
        for argv, below_flip, last in (
            ([], [], []),
            (["--augment", "ta"], ["TrivialAugmentWide"], []),
            (GIVEN, ["RandAugment"], ["RandomErasing"]),
        ):
            training, validation = run_worker(module, monkeypatch, *argv, *exact).loaders
            found = steps(training)
            expected = [*NAMES[:2], *below_flip, *NAMES[2:], *last]
            assert [type(step).__name__ for step in found] == expected
            assert len(steps(validation)) == 4
        assert (found[2].magnitude, found[-1].p, found[-1].value) == (5, 0.25, 0)
        assert found[2].interpolation is transforms.InterpolationMode.BILINEAR

        training, _ = run_worker(module, monkeypatch, *GIVEN).loaders
        read = training.dataset.images.loader.keywords["read"]
        assert type(read.augment).__name__ == "RandAugment" and read.erase.p == 0.25
