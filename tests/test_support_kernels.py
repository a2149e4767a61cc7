"""`support.kernels`: layouts of weights, and fused updates that read them as they lie."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from patches.support import kernels  # noqa: E402

nn = torch.nn
CPU = torch.device("cpu")
LAST = torch.channels_last
ARGS = SimpleNamespace(amp=None)


def convolutions(count):
    return nn.Sequential(*(nn.Conv2d(3, 3, 3) for _ in range(count)), nn.Linear(2, 2))


@pytest.mark.parametrize(
    "count, layout", [(0, torch.preserve_format), (1, torch.preserve_format), (2, LAST)]
)
def test_layout_is_channels_last_for_more_than_one_convolution(count, layout):
    model = convolutions(count)
    assert kernels.layout_of(model, CPU, ARGS) is layout
    off = SimpleNamespace(amp="off")
    assert kernels.layout_of(model, CPU, off) is torch.preserve_format
    model.to(CPU, memory_format=layout)  # also takes the one that keeps all as it is
    strides = {layer.weight.stride() for layer in model if isinstance(layer, nn.Conv2d)}
    assert strides <= {(27, 1, 9, 3) if layout is LAST else (27, 9, 3, 1)}


@pytest.mark.parametrize("capability, last", [((6, 1), False), ((7, 0), True), ((9, 0), True)])
def test_gpu_without_tensor_cores_and_unknown_devices_keep_channels_first(
    capability, last, monkeypatch
):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    layout = LAST if last else torch.preserve_format
    assert kernels.layout_of(convolutions(2), torch.device("cuda", 0), ARGS) is layout
    assert kernels.layout_of(convolutions(2), torch.device("meta"), ARGS) is torch.preserve_format


def test_fused_update_is_asked_for_by_trying(monkeypatch):
    assert kernels.fused_or_none(nn.Linear(1, 1)) is True

    def sgd(*args, **named):
        raise RuntimeError("`fused=True` requires all the params to be on supported devices")

    monkeypatch.setattr("torch.optim.SGD", sgd)
    assert kernels.fused_or_none(nn.Linear(1, 1)) is None


def conv(layout, momentum=None, gradient_layout=None):
    """A layer in one layout after a fused step with momentum and gradient in another one."""
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 3, 3, bias=False).to(memory_format=layout)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5, momentum=0.9, fused=True)
    first, second = torch.rand(2, 3, 4, 3, 3)
    if momentum is not None:
        optimizer.state[layer.weight]["momentum_buffer"] = first.to(memory_format=momentum)
    kernels.align(optimizer)
    layer.weight.grad = torch.empty_like(layer.weight).copy_(second)
    if gradient_layout is not None:
        del layer.weight.grad
        layer.weight.grad = second.to(memory_format=gradient_layout)
    optimizer.step()
    return layer.weight.detach(), optimizer


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_momentum_and_gradients_in_another_layout_update_what_they_are_for(layout):
    """Without this, torch's fused update on the CPU takes the numbers in the order of the memory."""
    other = LAST if layout is torch.contiguous_format else torch.contiguous_format
    plain, _ = conv(layout, layout, layout)
    for momentum, gradient in ((other, layout), (layout, other), (other, other)):
        mixed, optimizer = conv(layout, momentum, gradient)
        torch.testing.assert_close(mixed, plain, rtol=0, atol=1e-6)
        (kept,) = optimizer.state.values()
        assert kept["momentum_buffer"].stride() == mixed.stride()


def test_what_lies_right_is_not_copied():
    weight, optimizer = conv(LAST, LAST, LAST)
    (weight,) = optimizer.param_groups[0]["params"]
    gradient, buffer = weight.grad, optimizer.state[weight]["momentum_buffer"]
    optimizer.step()
    assert weight.grad is gradient
    assert optimizer.state[weight]["momentum_buffer"] is buffer


def test_numbers_of_an_optimizer_that_are_no_tensor_or_of_another_shape_stay():
    layer = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    optimizer.state[layer.weight].update(step=torch.tensor(3.0), momentum_buffer=None)
    kernels.align(optimizer)
    assert optimizer.state[layer.weight] == {"step": torch.tensor(3.0), "momentum_buffer": None}
