"""A batch in parts, one after the other, whose gradients add up to those of the whole batch."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn as nn


def add_options(parser):
    parser.add_argument(
        "--accum",
        default=1,
        type=int,
        metavar="N",
        help="compute each batch in N parts, with the memory of one part (default: 1)",
    )


class Part(NamedTuple):
    """Some images of a batch, their labels, and their share of the images of the batch: 0 to 1."""

    inputs: torch.Tensor
    labels: torch.Tensor
    share: float


class Parts:
    """The parts of one batch: `count` of them, or one for each image if there are fewer images.

        parts = Parts(model, inputs, labels, count)
        for part in parts:
            scores = model(part.inputs)
            loss = criterion(scores, part.labels) * part.share
            loss.backward()
            parts.add(scores, loss)
        scores, loss = parts.whole()

    `inputs` and `labels` are tensors with one row an image. Sizes differ by one image at most. The
    criterion has to give a mean over images, so the losses times their shares have the loss of the
    batch as their sum. DistributedDataParallel reduces gradients in the last part alone, and all of
    them there; so each rank may have another number of parts.
    """

    def __init__(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, count: int):
        self.model = model
        count = max(1, min(count, len(labels)))
        pairs = zip(inputs.tensor_split(count), labels.tensor_split(count))
        self.parts = [Part(rows, truth, len(truth) / len(labels)) for rows, truth in pairs]
        self.scores: list[torch.Tensor] = []
        self.losses: list[torch.Tensor] = []

    def __iter__(self) -> "Iterator[Part]":
        """Each part; in the body of the loop, the model knows whether it is the last one."""
        *others, last = self.parts
        # A wrapper of another kind, such as DataParallel, has nothing to put off.
        no_sync = getattr(self.model, "no_sync", contextlib.nullcontext)
        for part in others:
            with no_sync():
                yield part
        yield last

    def add(self, scores: torch.Tensor, loss: torch.Tensor):
        """Keep what a part has given, without what its gradients were made of."""
        self.scores.append(scores.detach())
        self.losses.append(loss.detach())

    def whole(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """Scores and mean loss of the whole batch, on their device and without a graph."""
        if len(self.parts) == 1:
            return self.scores[0], self.losses[0]
        return torch.cat(self.scores), torch.stack(self.losses).sum()
