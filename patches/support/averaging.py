"""--ema: the moving average of the weights, which often classifies better than the last ones.

It is torch's AveragedModel, validated and saved beside the weights that train. Each 32 steps it
moves towards them by the share 32 / (E * steps of an epoch), for --ema E: so E is the horizon in
epochs, the same for any batch and number of ranks. torchvision's reference moves by 32 * batch *
(1 - decay) / epochs, which is the same for E = epochs / ((1 - decay) * images): with its decay of
0.99998 and the 1,281,167 images of ImageNet, 11.7 in 300 epochs and 23.4 in 600
(https://github.com/pytorch/vision/blob/v0.26.0/references/classification/train.py).
"""

import torch.nn as nn
from torch.optim import swa_utils

from . import metrics, network, ranks
from .terminal import print_once

EVERY = 32  # steps from one update to the next, as in torchvision's reference

_average: "Average | None" = None


def add_options(parser):
    parser.add_argument(
        "--ema",
        default=0.0,
        type=float,
        metavar="E",
        help="also keep a moving average of the weights over some E epochs (default: 0, none)",
    )


class Average(swa_utils.AveragedModel):
    """The average of the weights and buffers of a model, and when it moves.

    horizon   how far it looks back, in epochs
    steps     the steps of an epoch
    warmup    epochs, perhaps a fraction, in which it is a copy

    `n_averaged` is the number of updates since then: 0 as long as it is a copy.
    """

    def __init__(self, model: nn.Module, horizon: float, steps: int, warmup: float):
        self.steps, self.warmup = steps, warmup
        self.share = EVERY / max(EVERY, horizon * steps)
        move = swa_utils.get_ema_multi_avg_fn(1 - self.share)
        super().__init__(model, multi_avg_fn=move, use_buffers=True)
        self.requires_grad_(False)

    def move(self, model: nn.Module, epoch: int, step: int):
        """Follow `model`, if `step` of `epoch`, which is done, is one of those that count."""
        done = epoch * self.steps + step + 1
        if done % EVERY:
            return
        self.update_parameters(model)
        if done <= self.warmup * self.steps:
            self.n_averaged.zero_()  # so the next update copies, too


def begin(run, train_loader, args):
    """With --ema: average the weights of `run.model`; `run` keeps the average in its checkpoints.

    Call it once the length of the warm-up, `args.warmup`, is settled, where a script has one.
    With --evaluate the average of the checkpoint is evaluated, if there is one.
    """
    global _average
    _average = None
    found = "ema" in run.found
    if args.ema or (args.evaluate and found):
        model, warmup = network.unwrap(run.model), getattr(args, "warmup", 0)
        _average = Average(model, args.ema, len(train_loader), warmup)
        run.keep("ema", _average)
    run.found.pop("ema", None)  # it is not held in memory twice


def update(run, step: int):
    """Call it once `step` of the run's epoch is done, after the optimizer, and before a save."""
    if _average is not None:
        _average.move(network.unwrap(run.model), run.epoch, step)


def versions(model: nn.Module):
    """What there is to validate: `model`, and then the averaged weights, which a line announces.

    As long as the average is a copy that lags behind, there is `model` alone. Collective.
    """
    yield model
    if _average is None or not int(_average.n_averaged):
        return
    average: nn.Module = _average.module
    if ranks.has_process_group():  # their statistics differ, and a checkpoint has those of rank 0
        network.send_buffers(average)
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        average = nn.DataParallel(average, model.device_ids)
    print_once("once more, with the averaged weights:")
    metrics.weights = "ema"
    yield average
    metrics.weights = "last"
