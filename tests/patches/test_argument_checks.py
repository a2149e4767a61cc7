"""Numbers without a meaning are refused; `test_support_arguments.py` lists them."""

import pytest
from builds import parse


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended:
            parse(module, monkeypatch, "--print-freq", "0")
        assert ended.value.code == 2
