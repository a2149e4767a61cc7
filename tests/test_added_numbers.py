"""The code that patches insert to make the numbers right, on its own."""

import pytest

torch = pytest.importorskip("torch")

from patches.added.slice_of_rank import slice_of_rank  # noqa: E402
from patches.added.split_batch import split_batch  # noqa: E402


def processes(monkeypatch, node=None, job=None, rank=0):
    """The environment that a launcher makes for one of the processes."""
    for name, value in (("LOCAL_WORLD_SIZE", node), ("WORLD_SIZE", job), ("RANK", rank)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    "batch_size, node, job, own",
    [(256, 8, 8, 32), (256, 8, 16, 32), (10, 5, 5, 2), (3, 3, 3, 1), (7, None, None, 7), (12, None, 4, 3)],
)
def test_batch_is_split_over_the_processes_of_the_node(batch_size, node, job, own, monkeypatch):
    processes(monkeypatch, node, job)
    assert split_batch(batch_size) == own


@pytest.mark.parametrize(
    "batch_size, node, words",
    [
        (4, 8, "--batch-size 4: fewer images than the 8 processes of this node"),
        (0, 1, "--batch-size 0: fewer images than the 1 processes of this node"),
        (-8, 2, "--batch-size -8: fewer images than the 2 processes of this node"),
        (256, 3, "--batch-size 256: does not divide by the 3 processes of this node; 255 and 258 do"),
        (10, 4, "--batch-size 10: does not divide by the 4 processes of this node; 8 and 12 do"),
    ],
)
def test_batch_that_cannot_be_split_is_one_line_with_both_numbers(batch_size, node, words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/home/me/distributed.py"])
    for rank in (0, 1):
        processes(monkeypatch, node, node, rank)
        with pytest.raises(SystemExit) as ended:
            split_batch(batch_size)
        assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"distributed.py: error: {words}\n")


@pytest.mark.parametrize("images, world", [(70, 3), (70, 4), (3, 8), (5, 1), (0, 2)])
def test_slices_of_all_ranks_hold_every_index_once_and_in_order(images, world, monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: world)
    slices = []
    for rank in range(world):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        slices.append(slice_of_rank(range(images)))
    assert sorted(index for indices in slices for index in indices) == list(range(images))
    assert all(list(indices) == sorted(indices) for indices in slices)
    assert max(map(len, slices)) - min(map(len, slices)) <= 1
    read = [image.item() for indices in slices for image in torch.utils.data.DataLoader(range(images), sampler=indices)]
    assert sorted(read) == list(range(images))
