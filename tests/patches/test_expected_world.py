"""--expect-world ends a job of another number of processes."""

import pytest
from builds import parse

JOB = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def serves(distributed, dataparallel, monkeypatch):
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    parse(distributed, monkeypatch, "--expect-world", "2")
    with pytest.raises(SystemExit) as ended:
        parse(distributed, monkeypatch, "--expect-world", "4")
    assert ended.value.code == 2
