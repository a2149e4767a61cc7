"""The ranks compare notes before they train; `test_support_job.py` says which."""

from builds import parse


def serves(distributed, dataparallel, monkeypatch):
    met = []
    monkeypatch.setattr(distributed.job, "meet", met.append)
    parse(distributed, monkeypatch, "--lr", "0.3")
    assert [args.lr for args in met] == [0.3]
