"""Small models in `torchvision.models`, for runs of whole scripts whose subject is not the model.

    PYTHONPATH=tests/tiny_models FAKE_GPUS=2 python build/dataparallel.py --arch gray ...

`gray` knows the class of an image of one grey: exactly, without training. `tiny` has to be trained,
and has running statistics, which each rank gathers for itself. `steep` is `tiny` with scores so
large that a step or two at any common learning rate overflows. `tiny_vit` is torchvision's vision
transformer with one layer. The stand-in for `torch.cuda` comes along.
"""

import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

GREYS = (20, 50, 82, 116, 152, 190, 230)  # of class 0, 1, ...: no two pairs are as far apart


def builders():
    """The functions that make a model, by their names."""
    import torch
    from torch import nn

    class Gray(nn.Module):
        def __init__(self, num_classes):
            super().__init__()
            self.greys = nn.Parameter(torch.tensor(GREYS) / 255)
            self.num_classes = num_classes

        def forward(self, images):
            grey = images[:, 0].mean((1, 2)) * 0.229 + 0.485  # the script's normalisation undone
            scores = -((4 * (grey[:, None] - self.greys)) ** 2)
            return nn.functional.pad(scores, (0, self.num_classes - len(GREYS)), value=-100.0)

    def gray(*, weights=None, num_classes=1000, **kwargs):
        return Gray(num_classes)

    def tiny(*, weights=None, num_classes=1000, **kwargs):
        return nn.Sequential(
            nn.AvgPool2d(56), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, num_classes)
        )

    class Steep(nn.Sequential):
        def forward(self, images):
            return 1e36 * super().forward(images)

    def steep(*, weights=None, num_classes=1000, **kwargs):
        return Steep(tiny(num_classes=num_classes))

    def tiny_vit(*, weights=None, num_classes=1000, **kwargs):
        from torchvision.models.vision_transformer import VisionTransformer

        return VisionTransformer(224, 56, 1, 2, 16, 32, num_classes=num_classes)

    return {one.__name__: one for one in (gray, tiny, steep, tiny_vit)}


def add_models(models):
    from torchvision.models._api import register_model

    for name, builder in builders().items():
        # list_models(module=torchvision.models) goes by the module.
        builder.__module__ = "torchvision.models.small"
        setattr(models, name, register_model()(builder))


class AddAfterImport:
    """Finds `torchvision.models`, and adds to it right after it has been imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == "torchvision.models" else None
        if spec is None:
            return None
        load = spec.loader.exec_module

        def load_and_add(module):
            load(module)
            add_models(module)

        spec.loader.exec_module = load_and_add
        return spec


if __name__ == "sitecustomize":  # and not where a test imports this for the models
    runpy.run_path(str(Path(__file__).resolve().parent.parent / "stand_in" / "sitecustomize.py"))
    sys.meta_path.insert(0, AddAfterImport)
