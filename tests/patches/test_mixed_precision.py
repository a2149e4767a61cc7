"""The model computes in the type of --amp; loss and accuracy are in float32."""

import torch
from builds import data_set, guesses, run_loop, run_worker


def serves(distributed, dataparallel, monkeypatch):
    monkeypatch.setattr("torch.set_float32_matmul_precision", lambda precision: None)
    for module in (distributed, dataparallel):
        for kind, computed in (("bf16", torch.bfloat16), ("off", torch.float32)):
            run_worker(module, monkeypatch, "--amp", kind)
            for loop in ("train", "validate"):
                assert computes(module, loop, monkeypatch) == {computed, "loss: torch.float32"}
        scales(module, monkeypatch)


def computes(module, loop, monkeypatch):
    """The types of what the model gives, and of what the loss takes."""
    seen, model, loss = set(), torch.nn.Linear(6, 6), torch.nn.functional.cross_entropy
    model.register_forward_hook(lambda model, inputs, output: seen.add(output.dtype))

    def cross_entropy(scores, *args, **named):
        seen.add(f"loss: {scores.dtype}")
        return loss(scores, *args, **named)

    with monkeypatch.context() as context:
        context.setattr("torch.nn.functional.cross_entropy", cross_entropy)
        run_loop(module, loop, context, model, guesses([4] * 2, [2] * 2))
    return seen


def scales(module, monkeypatch):
    """fp16: the loss is scaled before the backward pass; the scale is saved, and taken up again."""
    (state, _), *_ = run_worker(module, monkeypatch, "--amp", "fp16", "--epochs", "1").saved
    torch.save({**state, "scaler": {**state["scaler"], "scale": 512.0}}, "old.pth.tar")
    argv = ("--data", data_set(), "--amp", "fp16", "--epochs", "3", "--resume", "old.pth.tar")
    first, *_ = run_worker(module, monkeypatch, *argv).saved
    assert first[0]["scaler"]["scale"] == 512
    losses, backward = [], torch.Tensor.backward
    with monkeypatch.context() as context:
        context.setattr(
            "torch.Tensor.backward", lambda loss: losses.append(loss.item()) or backward(loss)
        )
        run_loop(module, "train", context, torch.nn.Linear(6, 6), guesses([4], [2]))
    assert losses[0] > 512 / 10
