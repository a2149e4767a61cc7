"""An image that cannot be decoded is named; `test_support_decode.py` has what may be skipped."""

import pytest
from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for loader in run_worker(module, monkeypatch).loaders:
            dataset = getattr(loader.dataset, "images", loader.dataset)
            with pytest.raises(Exception, match=r"0\.jpg") as caught:  # it only looks like an image
                dataset[0]
            assert str(caught.value).startswith(f"cannot decode {dataset.root}/a/0.jpg: ")
