"""--arch offers models, and no function that lies beside them."""

import torchvision


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        assert {"resnet18", "vit_l_16"} < set(module.model_names)
        assert set(module.model_names) <= set(torchvision.models.list_models())
