"""`support.smoothing`: a loss that smooths the labels of training, and of nothing else."""

import math

import pytest

torch = pytest.importorskip("torch")

from patches.support import smoothing  # noqa: E402


def expected(scores, shares, smooth):
    """The loss by its definition, in Python's doubles: the mean of -sum(q log p)."""
    found = []
    for row, wanted in zip(scores.tolist(), shares.tolist()):
        total = math.fsum(map(math.exp, row))
        logs = [math.log(math.exp(value) / total) for value in row]
        targets = [(1 - smooth) * share + smooth / len(row) for share in wanted]
        found.append(-math.fsum(q * log for q, log in zip(targets, logs)))
    return math.fsum(found) / len(found)


@pytest.mark.parametrize("smooth", [0.0, 0.11, 1.0])
@pytest.mark.parametrize("soft", [False, True])
def test_loss_is_that_of_the_definition(smooth, soft):
    dice = torch.Generator().manual_seed(3)
    scores = torch.randn(5, 7, generator=dice)
    labels = torch.randint(0, 7, (5,), generator=dice)
    shares = torch.nn.functional.one_hot(labels, 7).float()
    if soft:
        shares = labels = torch.softmax(torch.randn(5, 7, generator=dice), 1)
    loss = smoothing.Loss(smooth)
    assert float(loss(scores, labels)) == pytest.approx(expected(scores, shares, smooth), rel=1e-6)
    with torch.no_grad():
        plain = float(loss(scores, labels))
    assert plain == pytest.approx(expected(scores, shares, 0.0), rel=1e-6)


def test_without_smoothing_it_is_upstreams_loss_to_the_last_bit():
    scores = torch.randn(64, 10, requires_grad=True)
    labels = torch.randint(0, 10, (64,))
    grads = []
    for criterion in (torch.nn.CrossEntropyLoss(), smoothing.Loss()):
        loss = criterion(scores, labels)
        grads.append((loss.detach(), *torch.autograd.grad(loss, scores)))
    for one, other in zip(*grads):
        assert torch.equal(one, other)


def test_it_moves_and_has_nothing_to_save():
    assert smoothing.Loss(0.1).to("cpu").state_dict() == {}
