"""--label-smoothing: a loss that wants the right class not to be quite certain."""

import torch
import torch.nn as nn
import torch.nn.functional as functional


def add_options(parser):
    parser.add_argument(
        "--label-smoothing",
        default=0.0,
        type=float,
        metavar="S",
        help="share of each training label that all classes have in equal parts (default: 0)",
    )


class Loss(nn.CrossEntropyLoss):
    """torch's CrossEntropyLoss, which smooths labels while gradients are recorded.

    So it does in training, and the loss of a validation is the plain one, as upstream has it:
    comparable between runs with and without. Smoothing by S: the target is 1 - S of the label, plus
    S / classes for each class (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7).
    """

    def __init__(self, label_smoothing: float = 0.0):
        super().__init__(label_smoothing=label_smoothing)

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over images; `labels` are classes (N,) or probabilities (N, classes)."""
        share = self.label_smoothing if torch.is_grad_enabled() else 0.0
        return functional.cross_entropy(scores, labels, label_smoothing=share)
