"""A batch in parts: their sizes, their gradients, and when ranks exchange these."""

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from patches.support import accumulation  # noqa: E402

CRITERION = nn.CrossEntropyLoss()


def network(dtype=torch.float32):
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.GELU(), nn.Linear(16, 5)).to(dtype)


def batch(size, dtype=torch.float32):
    generator = torch.Generator().manual_seed(size)
    inputs = torch.randn(size, 3, 4, 4, generator=generator, dtype=dtype)
    return inputs, torch.randint(5, (size,), generator=generator)


def accumulated(model, inputs, labels, count):
    """Scores and loss of a batch; the gradients are then in `model`."""
    parts = accumulation.Parts(model, inputs, labels, count)
    for part in parts:
        scores = model(part.inputs)
        loss = CRITERION(scores, part.labels) * part.share
        loss.backward()
        parts.add(scores, loss)
    return parts.whole()


def plain(model, inputs, labels):
    """The same in one go."""
    scores = model(inputs)
    loss = CRITERION(scores, labels)
    loss.backward()
    return scores, loss


def gradients(model):
    return torch.cat([one.grad.flatten() for one in model.parameters()])


@given(st.integers(1, 40), st.integers(1, 65536))
def test_parts_are_the_batch_in_order_and_as_equal_as_can_be(size, count):
    inputs = torch.arange(size)
    parts = [*accumulation.Parts(nn.Identity(), inputs, -inputs, count)]
    sizes = [len(part.labels) for part in parts]
    assert len(parts) == min(size, count) and max(sizes) - min(sizes) <= 1 and min(sizes) >= 1
    assert torch.equal(torch.cat([part.inputs for part in parts]), inputs)
    assert torch.equal(torch.cat([part.labels for part in parts]), -inputs)
    assert [part.share for part in parts] == [one / size for one in sizes]


@pytest.mark.parametrize("dtype, within", [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("size, count", [(12, 1), (12, 2), (12, 4), (13, 5), (3, 8), (1, 2)])
def test_gradients_scores_and_loss_are_those_of_the_whole_batch(size, count, dtype, within):
    one, other = network(dtype), network(dtype)
    expected, found = (
        plain(one, *batch(size, dtype)),
        accumulated(other, *batch(size, dtype), count),
    )
    for wanted, got in zip(expected, found):
        assert got.dtype == dtype and not got.requires_grad
        torch.testing.assert_close(got, wanted.detach(), rtol=0, atol=within)
    torch.testing.assert_close(gradients(other), gradients(one), rtol=0, atol=within)


def test_one_part_changes_no_bit():
    one, other = network(), network()
    expected, found = plain(one, *batch(7)), accumulated(other, *batch(7), 1)
    assert all(map(torch.equal, expected, found))
    assert torch.equal(gradients(one), gradients(other))


def test_mean_of_unequal_parts_would_be_wrong():
    """So the shares matter: 13 images in 5 parts are 3, 3, 3, 2 and 2."""
    model, (inputs, labels) = network(torch.float64), batch(13, torch.float64)
    parts = accumulation.Parts(model, inputs, labels, 5)
    losses = [CRITERION(model(part.inputs), part.labels) for part in parts]
    assert abs(sum(losses) / 5 - CRITERION(model(inputs), labels)) > 1e-6


def test_a_part_keeps_the_memory_format_of_the_batch():
    images = batch(8)[0].to(memory_format=torch.channels_last)
    for part in accumulation.Parts(nn.Identity(), images, torch.zeros(8), 4):
        assert part.inputs.is_contiguous(memory_format=torch.channels_last)


def test_what_an_error_interrupts_does_not_stay_without_synchronization():
    class Wrapper(nn.Identity):
        held = False

        @contextlib.contextmanager
        def no_sync(self):
            self.held = True
            try:
                yield
            finally:
                self.held = False

    model = Wrapper()
    seen = [model.held for _ in accumulation.Parts(model, *batch(6), 3)]
    assert seen == [True, True, False]
    with contextlib.suppress(ZeroDivisionError):
        for part in accumulation.Parts(model, *batch(6), 3):
            assert model.held and part.share / 0
    assert not model.held


@pytest.fixture
def group(tmp_path):
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_ddp_reduces_each_gradient_once_a_batch(group, count, views):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    reduced, expected = [], network()
    model = nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=views)

    def hook(group, bucket):
        reduced.append(bucket.buffer().clone())
        return default_hooks.allreduce_hook(group, bucket)

    model.register_comm_hook(None, hook)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (model, expected)]
    for size in (8, 9, 2):  # DDP rearranges its buckets after the first one
        for optimizer in optimizers:
            optimizer.zero_grad()
        reduced.clear()
        accumulated(model, *batch(size), count)
        plain(expected, *batch(size))
        assert sum(map(torch.numel, reduced)) == sum(map(torch.numel, model.parameters()))
        torch.testing.assert_close(gradients(model), gradients(expected), rtol=0, atol=1e-6)
        for optimizer in optimizers:
            optimizer.step()


def test_batchnorm_sees_one_part_at_a_time():
    """As documented: its statistics are those of a part, and it counts parts."""
    layer = nn.BatchNorm2d(3)
    model = nn.Sequential(layer, copy.deepcopy(network()))
    accumulated(model, *batch(8), 4)
    assert layer.num_batches_tracked == 4
