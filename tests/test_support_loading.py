"""Who loads what: workers, the batch of a rank, the images that it validates, and signals."""

import argparse
import builtins
import io
import os
import resource
import signal
import subprocess

import pytest

torch = pytest.importorskip("torch")

from patches.support import loading  # noqa: E402


def processes(monkeypatch, node=None, job=None, rank=0):
    """The environment that a launcher makes for one of the processes."""
    for name, value in (("LOCAL_WORLD_SIZE", node), ("WORLD_SIZE", job), ("LOCAL_RANK", rank)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("cores", "limit", "node", "workers"),
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
def test_every_process_of_the_node_gets_a_share_of_the_cores(
    monkeypatch, cores, limit, node, workers
):
    opened = builtins.open

    def limited(path, *args, **kwargs):
        if path != "/sys/fs/cgroup/cpu.max":
            return opened(path, *args, **kwargs)
        if limit is None:
            raise FileNotFoundError(path)
        return io.StringIO(limit)

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(builtins, "open", limited)
    processes(monkeypatch, node)
    assert loading.default_workers() == workers


def test_machine_without_affinities_is_counted_whole(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert loading.default_workers() == 2


def test_default_share_is_that_of_the_launch(monkeypatch):
    """B9: how many processes this host has is known after the launch, and --workers is a number
    from then on.
    """
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)), raising=False)
    processes(monkeypatch)
    args = argparse.Namespace(workers=None)
    processes(monkeypatch, node=4, job=8)  # what srun or mpirun has said
    expected = loading.default_workers()
    loading.check(args)
    assert args.workers == expected <= 3
    for workers in (0, 5):
        args = argparse.Namespace(workers=workers)
        loading.check(args)
        assert args.workers == workers


class Limits:
    """Stands for the system's limits of open files."""

    def __init__(self, monkeypatch, soft, hard, fails=False):
        self.limits, self.fails = (soft, hard), fails
        monkeypatch.setattr("resource.getrlimit", lambda kind: self.limits)
        monkeypatch.setattr("resource.setrlimit", self.set)
        monkeypatch.setattr("sys.argv", ["/home/me/distributed.py"])

    def set(self, kind, limits):
        assert kind == resource.RLIMIT_NOFILE
        if self.fails:
            raise ValueError("not allowed to raise maximum limit")
        self.limits = limits


@pytest.mark.parametrize(
    "soft, hard, workers, raised",
    [
        (40, 4096, 6, 1104),
        (40, 104, 6, 104),
        (1024, 1048576, 16, 1224),
        (65536, 1048576, 16, 65536),
        (10, 10, 0, 10),
    ],
)
def test_limit_of_open_files_is_raised_as_far_as_workers_need(
    soft, hard, workers, raised, monkeypatch, capsys
):
    """B21: where the hard limit allows it, nobody has to know; the hard one stays."""
    system = Limits(monkeypatch, soft, hard)
    loading.check(argparse.Namespace(workers=workers))
    assert system.limits == (raised, hard)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "hard, fails, fitting", [(40, False, 0), (1000000, True, 0), (103, False, 5)]
)
def test_too_few_open_files_are_one_line_with_both_ways_out(
    hard, fails, fitting, monkeypatch, capsys
):
    """B21: ulimit -n 40 and -j 6 ended in a traceback of os.pipe."""
    processes(monkeypatch)
    soft = 40 if fails else hard
    Limits(monkeypatch, soft, hard, fails)
    with pytest.raises(SystemExit) as ended:
        loading.check(argparse.Namespace(workers=6))
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"distributed.py: error: --workers 6: needs 104 open files, and this process may have {soft}; "
        f"use -j {fitting}, or allow more with ulimit -n 104\n"
    )


class Squares(torch.utils.data.Dataset):
    """Samples as those of images are: two tensors."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.full((8,), index), index


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="/proc tells how many files are open"
)
def test_workers_of_both_loaders_need_no_more_files_than_is_said():
    """B21: 12 files a worker; torch may need more one day."""
    workers, before = 2, len(os.listdir("/proc/self/fd"))
    loaders = [
        torch.utils.data.DataLoader(
            Squares(), batch_size=2, num_workers=workers, persistent_workers=True
        )
        for _ in range(2)
    ]
    most = max(
        len(os.listdir("/proc/self/fd")) for _ in range(2) for loader in loaders for _ in loader
    )
    assert 7 * workers < most - before <= 12 * workers + 12


@pytest.mark.parametrize(
    "batch_size, node, job, own",
    [
        (256, 8, 8, 32),
        (256, 8, 16, 32),
        (10, 5, 5, 2),
        (3, 3, 3, 1),
        (7, None, None, 7),
        (12, None, 4, 3),
    ],
)
def test_batch_is_split_over_the_processes_of_the_node(batch_size, node, job, own, monkeypatch):
    processes(monkeypatch, node, job)
    assert loading.split_batch(batch_size) == own


@pytest.mark.parametrize(
    "batch_size, node, words",
    [
        (4, 8, "--batch-size 4: fewer images than the 8 processes of this node"),
        (0, 1, "--batch-size 0: fewer images than the 1 processes of this node"),
        (-8, 2, "--batch-size -8: fewer images than the 2 processes of this node"),
        (
            256,
            3,
            "--batch-size 256: does not divide by the 3 processes of this node; 255 and 258 do",
        ),
        (10, 4, "--batch-size 10: does not divide by the 4 processes of this node; 8 and 12 do"),
    ],
)
def test_batch_that_cannot_be_split_is_one_line_with_both_numbers(
    batch_size, node, words, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", ["/home/me/distributed.py"])
    for rank in range(min(node, 2)):
        processes(monkeypatch, node, node, rank)
        with pytest.raises(SystemExit) as ended:
            loading.split_batch(batch_size)
        assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"distributed.py: error: {words}\n")


@pytest.mark.parametrize("images, world", [(70, 3), (70, 4), (3, 8), (5, 1), (0, 2)])
def test_slices_of_all_ranks_hold_every_index_once_and_in_order(images, world, monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: world)
    slices = []
    for rank in range(world):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        slices.append(loading.rank_slice(range(images)))
    assert sorted(index for indices in slices for index in indices) == list(range(images))
    assert all(list(indices) == sorted(indices) for indices in slices)
    assert max(map(len, slices)) - min(map(len, slices)) <= 1
    read = [
        image.item()
        for indices in slices
        for image in torch.utils.data.DataLoader(range(images), sampler=indices)
    ]
    assert sorted(read) == list(range(images))


def test_worker_outlives_the_signals_of_others_and_ends_with_its_own_process():
    context = torch.multiprocessing.get_context("fork")
    ready = context.Event()

    def work():
        loading.outlive_signals(0)
        ready.set()
        signal.pause()  # until a signal that is not ignored

    worker = context.Process(target=work)
    worker.start()
    try:
        assert ready.wait(30)
        for name in ("SIGINT", "SIGUSR1"):
            os.kill(worker.pid, getattr(signal, name))
        subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
        worker.join(0.5)
        assert worker.exitcode is None
        os.kill(worker.pid, signal.SIGTERM)
        worker.join(30)
        assert worker.exitcode == 0
    finally:
        worker.kill()
