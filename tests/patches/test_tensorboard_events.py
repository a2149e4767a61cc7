"""With --tensorboard the package is asked for at the start, and events begin before training."""

import sys

import pytest
from builds import parse, run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        begun, argv = [], ("--epochs", "1", "--tensorboard")
        with monkeypatch.context() as context:
            context.setitem(sys.modules, "torch.utils.tensorboard", None)
            context.setattr(module.events.ranks, "is_rank_zero", lambda: True)
            with pytest.raises(SystemExit):
                parse(module, context, *argv)
        with monkeypatch.context() as context:
            context.setattr(module.events, "check", lambda args: None)
            context.setattr(module.events, "begin", begun.append)
            run_worker(module, context, *argv)
        assert [args.tensorboard for args in begun] == [True]
