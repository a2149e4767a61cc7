"""`support.clipping`: the norm of the gradient of a step, as computed here in float64."""

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from patches.support import clipping, precision  # noqa: E402

nn = torch.nn


@pytest.fixture(autouse=True)
def no_scale(monkeypatch):
    monkeypatch.setattr(precision, "_scaler", None)


@pytest.fixture
def scaler(monkeypatch):
    """The scale of --amp fp16, 1024 at first, as on a GPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monkeypatch.setattr(precision, "_scaler", scaler)
    return scaler


def stepped(norm, gradients, kind=torch.optim.SGD, scale=1.0):
    """How far a step at rate 1 moves weights that begin at 0: the clipped gradient, negative."""
    weights = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    groups = [{"params": weights[:1]}, {"params": weights[1:]}]
    optimizer = kind(groups, lr=1.0, fused=True)
    for weight, gradient in zip(weights, gradients):
        weight.grad = gradient * scale
    clipping.step(optimizer, SimpleNamespace(clip_grad=norm))
    return [weight.detach() for weight in weights]


def random_gradients():
    torch.manual_seed(0)
    return [torch.randn(5, 3), 3 * torch.randn(7), torch.randn(2, 2, 2)]


def length(tensors):
    """The 2-norm over all of them, from exact sums in double precision."""
    return math.sqrt(math.fsum(float(x) ** 2 for one in tensors for x in one.flatten()))


@pytest.mark.parametrize("norm", [0.25, 1.0, 5.0])
def test_a_long_gradient_keeps_its_direction_and_gets_the_norm(norm):
    """Over all groups together."""
    gradients = random_gradients()
    whole = length(gradients)
    assert whole > 5
    moved = stepped(norm, gradients)
    assert length(moved) == pytest.approx(norm, rel=1e-5)
    for step, gradient in zip(moved, gradients):
        torch.testing.assert_close(step, -gradient * (norm / whole), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("norm", [0, 100.0])
def test_a_short_gradient_and_one_without_a_limit_stay_to_the_bit(norm):
    gradients = random_gradients()
    assert all(torch.equal(step, -old) for step, old in zip(stepped(norm, gradients), gradients))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_the_scale_of_float16_is_taken_from_the_gradient_first(kind, scaler, monkeypatch):
    scaler.scale(torch.ones(1))  # so it knows its scale
    scaled = stepped(1.0, random_gradients(), kind, scale=1024.0)
    monkeypatch.setattr(precision, "_scaler", None)
    plain = stepped(1.0, random_gradients(), kind)
    for one, other in zip(scaled, plain):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_an_overflow_of_float16_is_no_step_and_halves_the_scale(scaler):
    scaler.scale(torch.ones(1))
    gradients = random_gradients()
    gradients[1][0] = math.inf
    moved = stepped(1.0, gradients, scale=1024.0)
    assert all(torch.equal(step, torch.zeros_like(step)) for step in moved)
    assert scaler.get_scale() == 512


def test_a_gradient_that_is_not_finite_makes_weights_that_are_not():
    gradients = random_gradients()
    gradients[1][0] = math.nan
    assert all(bool(torch.isnan(step).all()) for step in stepped(1.0, gradients))


def test_a_weight_without_a_gradient_is_left_out():
    used, unused = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([used, unused], lr=1.0)
    used.grad = torch.tensor([3.0, 4.0])
    clipping.step(optimizer, SimpleNamespace(clip_grad=1.0))
    torch.testing.assert_close(used.detach(), torch.tensor([-0.6, -0.8]))
    assert torch.equal(unused.detach(), torch.ones(2))
