"""Validation images of a class that training does not have are refused."""

import pytest
from builds import data_set, parse


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended:
            parse(module, monkeypatch, "--data", data_set(val="bcd"))
        assert ended.value.code == 2
