"""What `loader_workers` inserts: how many processes load data where nobody says so."""

import builtins
import io

import pytest

from patches.added.workers import default_workers


@pytest.mark.parametrize(
    ("cores", "limit", "processes", "workers"),
    [
        (8, None, None, 8),
        (8, None, 2, 4),
        (128, None, 8, 16),
        (128, None, 1, 16),  # more would fill the memory
        (10, None, 4, 2),
        (2, None, 8, 1),
        (64, "400000 100000\n", 2, 2),
        (64, "50000 100000\n", 1, 1),
        (4, "800000 100000\n", 1, 4),
        (6, "max 100000\n", 1, 6),
    ],
)
def test_every_process_of_the_node_gets_a_share_of_the_cores(monkeypatch, cores, limit, processes, workers):
    opened = builtins.open

    def limited(path, *args, **kwargs):
        if path != "/sys/fs/cgroup/cpu.max":
            return opened(path, *args, **kwargs)
        if limit is None:
            raise FileNotFoundError(path)
        return io.StringIO(limit)

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(builtins, "open", limited)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert default_workers() == workers


def test_machine_without_affinities_is_counted_whole(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert default_workers() == 2
