"""Run a built script with one more model: `small_vit`, a ViT that a CPU trains in minutes.

    python examples/small_vit.py build/distributed.py --arch small_vit --image-size 24 ...
    torchrun --nproc_per_node=2 examples/small_vit.py build/distributed.py --arch small_vit ...

It is torchvision's VisionTransformer with 4 layers of 96 numbers and patches of 4 x 4 pixels: 0.3
million weights, where vit_b_16 has 86 million.
"""

import runpy
import sys

from torchvision import models
from torchvision.models._api import register_model


def small_vit(*, weights=None, image_size=24, **options) -> models.VisionTransformer:
    size = {"num_layers": 4, "num_heads": 4, "hidden_dim": 96, "mlp_dim": 192}
    return models.VisionTransformer(image_size=image_size, patch_size=4, **size, **options)


def main() -> None:
    small_vit.__module__ = "torchvision.models.small_vit"  # --arch offers torchvision's models
    models.small_vit = register_model()(small_vit)
    del sys.argv[0]
    sys.path.insert(0, sys.argv[0].rpartition("/")[0])  # where the script's own modules are
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
