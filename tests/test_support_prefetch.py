"""`support.prefetch`: batches that are on the device when the loop gets them."""

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import weakref

import pytest

torch = pytest.importorskip("torch")

from patches.support import prefetch  # noqa: E402

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


@pytest.mark.parametrize("given, workers, depth", [([], 3, 2), (["--prefetch", "5"], 3, 5)])
def test_depth_is_for_each_worker_and_torch_takes_it(given, workers, depth):
    parser = argparse.ArgumentParser()
    prefetch.add_options(parser)
    for count, expected in ((workers, depth), (0, None)):
        args = argparse.Namespace(workers=count, **vars(parser.parse_args(given)))
        assert prefetch.depth(args) == expected
        torch.utils.data.DataLoader([1], num_workers=count, prefetch_factor=prefetch.depth(args))


@pytest.fixture(autouse=True)
def no_worker_left():
    """After an error torch waits ten seconds for its workers, and an error keeps its loader."""
    yield
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    gc.collect()


class Numbers(torch.utils.data.Dataset):
    """Samples (tensor, number), of which one may be bad."""

    def __init__(self, size, bad=None):
        self.size, self.bad = size, bad

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError(f"sample {index} is bad")
        return torch.full((2,), float(index)), index


def labels(batches):
    return [batch[1].tolist() for batch in batches]


class Streams:
    """Stands for CUDA's streams: what is queued on them is noted, and copies are made at once."""

    def __init__(self, monkeypatch):
        self.events, self.current, self.copies, self.most = [], "compute", [], 0
        empty_like, copy = torch.empty_like, torch.Tensor.copy_

        def made(part, device):
            assert device == CUDA and self.current == "compute"  # whose memory it is
            new = empty_like(part)
            self.copies.append(weakref.ref(new))
            self.most = max(self.most, self.alive())
            return new

        def copied(new, source, non_blocking):
            assert non_blocking
            if source.dtype == torch.int64:  # once a batch
                self.events.append(f"{self.current} copies {source[0].item()}")
            return copy(new, source)

        for name, value in {
            "torch.cuda.Stream": lambda device: self.stream("side"),
            "torch.cuda.current_stream": lambda device: self.stream(self.current),
            "torch.cuda.stream": self.entered,
            "torch.empty_like": made,
            "torch.Tensor.copy_": copied,
        }.items():
            monkeypatch.setattr(name, value)

    def stream(self, name):
        def wait_stream(other):
            self.events.append(f"{name} waits for {other.name}")

        return argparse.Namespace(name=name, wait_stream=wait_stream)

    @contextlib.contextmanager
    def entered(self, stream):
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def alive(self):
        return sum(copy() is not None for copy in self.copies)


@pytest.fixture
def streams(monkeypatch):
    return Streams(monkeypatch)


def test_on_cuda_the_next_batch_is_copied_while_this_one_is_computed(streams):
    for batch in prefetch.ahead(torch.utils.data.DataLoader(Numbers(3)), CUDA):
        streams.events.append(f"compute takes {batch[1].item()}")
    assert streams.events == [
        "side waits for compute",
        "side copies 0",
        "compute waits for side",  # and not for what is copied from here on
        "side waits for compute",  # for step -1: its memory may be used again
        "side copies 1",
        "compute takes 0",
        "compute waits for side",
        "side waits for compute",
        "side copies 2",
        "compute takes 1",
        "compute waits for side",
        "compute takes 2",
        "compute waits for side",
    ]


def test_on_cuda_three_batches_are_in_memory_at_most(streams):
    """That of the step before, until the loop has the next one; that; and the one after it."""
    for _batch in prefetch.ahead(torch.utils.data.DataLoader(Numbers(9)), CUDA):
        assert streams.alive() <= 2 * 2  # two tensors each
    assert streams.most == 2 * 3
    del _batch
    assert streams.alive() == 0


def test_on_cuda_a_loop_that_ends_early_waits_for_the_copy_on_the_device(streams):
    for _batch in prefetch.ahead(torch.utils.data.DataLoader(Numbers(9)), CUDA):
        streams.events.clear()
        break
    assert streams.events == ["compute waits for side"]
    assert streams.current == "compute"


each_device = pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
each_count = pytest.mark.parametrize("workers", [0, 2])


@each_device
@each_count
@pytest.mark.parametrize("size", [0, 7, pytest.param(3, marks=pytest.mark.thorough)])
def test_batches_are_those_of_the_loader(size, workers, device, streams):
    loader = torch.utils.data.DataLoader(Numbers(size), 3, num_workers=workers)
    for _ in range(2):
        found = list(prefetch.ahead(loader, device))
        assert labels(found) == labels(loader)
        for (images, _), (expected, _) in zip(found, loader):
            assert torch.equal(images, expected)


@each_device
@each_count
@pytest.mark.parametrize("bad", [0, pytest.param(4, marks=pytest.mark.thorough), 6])
def test_an_error_of_a_worker_comes_after_the_batches_before_it(bad, workers, device, streams):
    loader = torch.utils.data.DataLoader(Numbers(9, bad), 2, num_workers=workers)
    batches = prefetch.ahead(loader, device)
    before = itertools.islice(batches, bad // 2)
    assert labels(before) == [[n, n + 1] for n in range(0, bad, 2)]
    with pytest.raises(ValueError, match=f"sample {bad} is bad"):
        next(batches)


def test_elsewhere_nothing_is_read_before_the_loop_asks_for_it():
    read = []

    def batches():
        for number in range(3):
            read.append(number)
            yield torch.zeros(1), torch.tensor([number])

    for number, _ in enumerate(prefetch.ahead(batches(), CPU)):
        assert read == list(range(number + 1))


@each_device
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_ends_early_loses_no_worker(persistent, device, streams):
    """The workers of a loader that keeps them go on; others end, and nothing waits for them."""
    loader = torch.utils.data.DataLoader(
        Numbers(40), 2, num_workers=2, persistent_workers=persistent
    )
    for end in (StopIteration, SystemExit, None):
        with contextlib.suppress(StopIteration, SystemExit):
            for number, _ in enumerate(prefetch.ahead(loader, device)):
                if number == 3:
                    if end is None:
                        break
                    raise end
        assert len(multiprocessing.active_children()) == (2 if persistent else 0)
    assert labels(prefetch.ahead(loader, device)) == labels(loader)
