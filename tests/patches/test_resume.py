"""All that a run needs is saved, and a run goes on from it, or from a checkpoint of upstream's."""

import pytest
import torch
from builds import data_set, parse, run_worker


def serves(distributed, dataparallel, monkeypatch):
    data = ("--data", data_set())
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended, monkeypatch.context() as context:
            parse(module, context, *data, "-e")  # there are no weights to evaluate
        assert ended.value.code == 2
        first = run_worker(module, monkeypatch, *data, "--epochs", "1")
        ((state, is_best),) = first.saved
        assert not is_best
        holds_all(state)
        model = torch.nn.Linear(1, len(first.parameters[-1]))
        goes_on(module, monkeypatch, data, state, model, upstreams_own(state, model), best=50.0)
        own = dict(state, epoch=4, state_dict=model.state_dict(), best_acc1=9.0)
        goes_on(module, monkeypatch, data, state, model, own, best=9.0)


def holds_all(state):
    assert set(state.get("optimizer", ())) == {"state", "param_groups"}
    assert (state["epoch"], state["step"], state["world_size"]) == (1, 0, 1)
    assert type(state["best_acc1"]) is float
    assert (state["format"], state["classes"], state["sums"]) == (1, ["a", "b", "c"], [])


def upstreams_own(state, model):
    """What upstream saves: four keys."""
    weights = model.state_dict()
    return {"epoch": 4, "arch": state["arch"], "state_dict": weights, "best_acc1": 50.0}


def goes_on(module, monkeypatch, data, state, model, old, best):
    """Epochs 4 and 5 are trained from these weights; the name of the run stays if there is one."""
    torch.save(old, "old.pth.tar")
    argv = (*data, "--resume", "old.pth.tar", "--epochs", "6")
    seen = run_worker(module, monkeypatch, *argv)
    assert [given[4] for given in seen.trained] == [4, 5]
    pairs = zip(model.parameters(), seen.parameters, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    saved = [(new["epoch"], new["best_acc1"], is_best) for new, is_best in seen.saved]
    assert saved == [(5, best, False), (6, best, False)]
    assert {new["run"] == state["run"] for new, _ in seen.saved} == {"run" in old}
