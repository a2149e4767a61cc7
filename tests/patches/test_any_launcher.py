"""The launcher says who a process is; without one it is alone."""

import os

import pytest
from builds import parse

JOB = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
JOB |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def serves(distributed, dataparallel, monkeypatch):
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    # Some wrappers pass the same --local-rank to all.
    assert parse(distributed, monkeypatch, "--local-rank", "0").local_rank == 1
    with pytest.raises(SystemExit):  # one process is all that it takes
        parse(dataparallel, monkeypatch)
    for name in (*JOB, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name)
    assert parse(distributed, monkeypatch, "--local-rank", "0").local_rank == 0
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
