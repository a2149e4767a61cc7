"""A recipe sets each of its values that the command line does not have, and args.json has all."""

import json
from pathlib import Path

from builds import parse, run_worker

ARCHS = {"vit": "vit_b_32", "vit-paper": "vit_b_32", "resnet": "resnet18"}


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for name, arch in ARCHS.items():  # a table may name no option that is not there
            with monkeypatch.context() as context:
                argv = ("-a", arch, "--recipe", name, "--epochs", "7", "-b", "512")
                args = parse(module, context, *argv)
            assert (args.recipe, args.epochs, args.schedule) == (name, 7, "cosine")
            assert args.lr == (0.25 if name == "resnet" else 0.000375)
        argv = ("--recipe", "vit", "-b", "512", "--epochs", "1")
        ((state, _),) = run_worker(module, monkeypatch, *argv).saved
        assert (state["args"]["recipe"], state["args"]["ema"]) == ("vit", 11.7)
        found = json.loads(Path("args.json").read_text())
        assert (found["recipe"], found["opt"], found["batch_size"]) == ("vit", "adamw", 512)
        assert "builder" not in found
        Path("args.json").unlink()
        ((state, _),) = run_worker(module, monkeypatch, "--epochs", "1").saved
        assert (state["args"]["recipe"], state["args"]["lr"]) == (None, 0.1)
