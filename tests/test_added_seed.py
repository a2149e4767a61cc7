"""What `seeded_run` inserts: a seed for each rank."""

import pytest

from patches.added.seed import rank_seed


def seeds(monkeypatch, seed, ranks=64):
    found = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        found.append(rank_seed(seed))
    return found


@pytest.mark.parametrize("seed", [0, 1, -3, 2**40])
def test_ranks_have_seeds_of_their_own_that_repeat(monkeypatch, seed):
    first = seeds(monkeypatch, seed)
    assert first[0] == seed
    assert len(set(first)) == len(first)
    assert seeds(monkeypatch, seed) == first


def test_neighbouring_seeds_share_no_ranks_seed(monkeypatch):
    found = [value for seed in range(10) for value in seeds(monkeypatch, seed)]
    assert len(set(found)) == len(found)


def test_one_process_without_a_launcher_has_the_seed_itself(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert rank_seed(17) == 17


def test_torch_takes_every_seed(monkeypatch):
    torch = pytest.importorskip("torch")
    with torch.random.fork_rng(devices=[]):
        for value in seeds(monkeypatch, 3, ranks=8):
            torch.manual_seed(value)
            assert torch.initial_seed() == value
