"""DataParallel on several GPUs says, once, what is faster."""

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    asked = []
    monkeypatch.setattr(dataparallel.advice, "recommend_ddp", asked.append)
    seen = run_worker(dataparallel, monkeypatch)
    (model,) = asked
    assert [*model.parameters()] == seen.parameters
