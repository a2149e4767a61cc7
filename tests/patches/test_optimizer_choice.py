"""--opt chooses the optimizer, --decay what decays; without them all is as upstream has it."""

import pytest
import torch
from builds import data_set, run_worker


def serves(distributed, dataparallel, monkeypatch):
    data = ("--data", data_set(), "--epochs", "1", "--lr", "0.25", "--wd", "0.125")
    for module in (distributed, dataparallel):
        (given,) = run_worker(module, monkeypatch, *data, "--momentum", "0.5").trained
        (group,) = given[3].param_groups
        assert type(given[3]) is torch.optim.SGD
        assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.25, 0.5, 0.125)
        argv = ("--opt", "adamw", "--betas", "0.5", "0.75", "--overwrite")
        (given,) = run_worker(module, monkeypatch, *data, *argv).trained
        weight, bias = given[3].param_groups
        assert type(given[3]) is torch.optim.AdamW
        assert (weight["betas"], weight["weight_decay"], bias["weight_decay"]) == (
            (0.5, 0.75),
            0.125,
            0,
        )
        assert [one.ndim for group in (weight, bias) for one in group["params"]] == [2, 1]


def test_an_optimizer_that_says_more_is_refused():
    pytest.importorskip("libcst")
    from rendering import SUPPORT, make

    from patcher.core.engine import render

    source = (
        b"import argparse\nimport torch\n\nparser = argparse.ArgumentParser()\n\n\n"
        b"def main(args):\n    sgd = torch.optim.SGD(net.parameters(), args.lr, nesterov=True)\n\n\n"
        b"def start():\n    main(parser.parse_args())\n"
    )
    patch = make("optimizer_choice")
    patch.sites = {"script.py": {"main": 1}}
    (outcome,) = render("script.py", source, [patch], SUPPORT).outcomes
    assert outcome.refused
    assert outcome.detail == (
        "expected SGD(net.parameters(), lr=args.lr, momentum=args.momentum, "
        "weight_decay=args.weight_decay)"
    )
