"""Inserted by `finite_loss`."""

import math

import torch

from patches.added.stop_unless_finite import stop_unless_finite


def while_finite(steps, model, losses, optimizer, epoch):
    """The numbered batches `steps` as long as the loss is finite; else the run ends, on all ranks together.

    It costs no wait: the average is looked at where it is a number that has been read and is that of all ranks
    anyway, which is in every step or in those that print a line. Behind the last batch all ranks compare
    their losses and weights, so nothing is validated or saved that a loss has spoilt, and at most
    the steps of one `--print-freq` are lost.
    """
    first, recent = 0, []
    for i, batch in steps:
        first = first if recent else i
        yield i, batch
        recent.append(losses.val)
        if isinstance(losses.avg, torch.Tensor):
            continue
        if not math.isfinite(losses.avg):
            stop_unless_finite(recent, first, model, optimizer, epoch)
        recent.clear()
    stop_unless_finite(recent, first, model, optimizer, epoch)
