"""Meters over all ranks, without a wait in each step, and an end to runs that are not finite.

`progress` is the script's ProgressMeter. Its meters have `name`, `val`, `sum`, `count`, `avg`.
"""

import math

import torch
import torch.distributed as dist

from . import ranks
from .terminal import exit_with_error


def measured(value: torch.Tensor) -> torch.Tensor:
    """The mean over one batch as a number for a meter: a scalar tensor that stays on its device.

    To read it there would make the host wait. It is in double precision if the device has that,
    since a meter adds up a whole epoch.
    """
    value = value.detach().reshape(())
    try:
        return value.double()
    except TypeError:  # Apple's devices have no double precision
        return value


def reduce(progress):
    """`progress`, ready to print: values and averages over all ranks, in one reduction. Collective.

    All ranks call this in the same steps, and have as many samples each, as their sampler ensures.
    The sums remain those of this rank and go on; `over_ranks` is sum and count of all ranks. A
    meter that does not measure on the device, such as a time, stays as it is.
    """
    meters = [meter for meter in progress.meters if isinstance(meter.sum, torch.Tensor)]
    if meters:
        rows = [(meter.val, meter.sum, torch.full_like(meter.sum, meter.count)) for meter in meters]
        numbers = torch.stack([torch.stack(row) for row in rows])
        world = dist.get_world_size() if ranks.has_process_group() else 1
        if world > 1:
            dist.all_reduce(numbers)
        for meter, (value, total, count) in zip(meters, numbers.tolist()):
            meter.val, meter.avg = value / world, total / count
            meter.over_ranks = total, count
    return progress


def sums_over_ranks(meters) -> "list[list[float]]":
    """[sum, count] of each meter over all ranks, in double precision. Collective."""
    parts = ranks.gathered([(float(meter.sum), meter.count) for meter in meters])
    return [[sum(column) for column in zip(*of_ranks)] for of_ranks in zip(*parts)]


def total(progress):
    """Set sum, count and average of each meter to those of all ranks. Collective.

    Call it once, after the loop: ranks may have different numbers of batches. Accuracies are made
    of whole hits again, so they are exact, however the images were split.
    """
    for meter, (added, count) in zip(progress.meters, sums_over_ranks(progress.meters)):
        meter.sum = 100.0 * round(added / 100) if meter.name.startswith("Acc") else added
        meter.count, meter.avg = count, meter.sum / max(count, 1)


class FiniteCheck:
    """Ends the run, on all ranks together, if a loss is not finite, or a weight after the epoch.

    It costs no wait. In a step that reads the average of the meter `losses`, for a line, `check`
    looks at it; it is then a plain number, the same on all ranks. After the epoch `check_all`
    compares losses and weights on all ranks. So nothing is validated or saved that a loss has
    spoilt, and at most the steps of one --print-freq are lost.
    """

    def __init__(self, losses, model, optimizer, epoch: int):
        self.losses, self.model, self.optimizer, self.epoch = losses, model, optimizer, epoch
        self.first = 0
        self.recent: list[torch.Tensor | float] = []  # losses since the last line

    def check(self, step: int):
        """Call it in each step, after the meter's update and after the line, if there is one."""
        if not self.recent:
            self.first = step
        self.recent.append(self.losses.val)
        if isinstance(self.losses.avg, torch.Tensor):
            return
        if not math.isfinite(self.losses.avg):
            self.check_all()
        self.recent.clear()

    def check_all(self):
        """Call it after the loop. Collective."""
        stop_unless_finite(self.recent, self.first, self.model, self.optimizer, self.epoch)


def stop_unless_finite(losses, first: int, model, optimizer, epoch: int):
    """End the run if a loss or a weight is not finite on any rank. Collective.

    `losses` are those of the steps from `first` on. The message names the first bad step of all
    ranks.
    """
    steps = enumerate(map(float, losses), first)
    found: list[tuple[float, float]] = [one for one in steps if not math.isfinite(one[1])]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values()):
        found.append((math.inf, math.nan))  # later than any step
    found = sorted(part[0] for part in ranks.gathered(found[:1]) if part)
    if not found:
        return
    step, loss = found[0]
    what = f"epoch {epoch}, step {step}: the loss is {loss}"
    if step == math.inf:
        what = f"epoch {epoch}: the loss is finite, the weights are not"
    rate = f"learning rate {optimizer.param_groups[0]['lr']:g}"
    exit_with_error(f"{what} ({rate}); stopped, and the last checkpoint stays as it is")
