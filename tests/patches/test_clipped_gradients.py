"""--clip-grad limits the gradient of a step, that of the whole batch; 0 leaves it as it is."""

import pytest
import torch
from builds import guesses, run_loop


def moved(module, monkeypatch, *argv):
    """How far one step of SGD at a rate of 0.25 moves the weights."""
    options = vars(module.parser.parse_args(["--lr", "0.25", *argv]))
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 6)
    before = [weight.detach().clone() for weight in model.parameters()]
    with monkeypatch.context() as context:
        for name in ("_dtype", "_scaler"):  # float32, whatever ran here before
            context.setattr(module.precision, name, None)
        run_loop(module, "train", context, model, guesses([4], [2]), options)
    changes = [after.detach() - old for after, old in zip(model.parameters(), before)]
    return float(sum(change.square().sum() for change in changes).sqrt())


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        whole = moved(module, monkeypatch)
        assert whole > 0.25
        for more in ((), ("--accum", "2")):
            clipped = moved(module, monkeypatch, "--clip-grad", "0.5", *more)
            assert clipped == pytest.approx(0.25 * 0.5, rel=1e-4)
            assert moved(module, monkeypatch, "--clip-grad", "1000", *more) == pytest.approx(whole)
