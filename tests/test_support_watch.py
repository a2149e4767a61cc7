"""`support.watch`: all ranks stop after one and the same piece of work, and one that hangs is
named.
"""

import queue
import random
import socket
import threading
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from patches.support import ending, ranks, watch  # noqa: E402


@pytest.fixture
def watches(monkeypatch):
    """A function that makes the watches of so many ranks, which share a store."""
    made = []
    monkeypatch.setattr(ending, "_duties", [])
    monkeypatch.setattr(ending.atexit, "register", lambda function: None)

    def make(world, timeout=600):
        store = dist.HashStore()
        monkeypatch.setattr(watch, "shared_store", lambda: store)
        monkeypatch.setenv("WORLD_SIZE", str(world))
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            made.append(watch.Watch(timeout))
        return made[-world:]

    yield make
    for one in made:  # or it ends this process, which does not move on
        one.over.set()
        one.asked.set()


def work(one, pieces, dice):
    """Pieces of work of different lengths, until the watch ends them; how many."""
    done = 0
    while not one.is_due():
        time.sleep(dice.random() / 100)
        done += 1
        pieces.append((one.rank, done))
    return done


@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_stop_after_the_same_piece_whoever_was_asked_and_however_far_ahead_it_was(
    seed, watches
):
    dice = random.Random(seed)
    ranks, pieces, ends = watches(3), [], {}
    threads = [
        threading.Thread(
            target=lambda one=one: ends.update(
                {one.rank: work(one, pieces, random.Random(one.rank))}
            )
        )
        for one in ranks
    ]
    for thread in threads:
        thread.start()
    time.sleep(dice.random())
    ranks[dice.randrange(3)].asked.set()
    for thread in threads:
        thread.join(20)
    assert len(set(ends.values())) == 1 and len(ends) == 3, ends
    assert ends[0] > 0


def test_one_process_alone_stops_at_once_and_needs_no_store(watches, monkeypatch):
    (one,) = watches(1)
    assert one.store is None
    assert not one.is_due() and not one.is_coming()
    one.asked.set()
    one.settled.wait(5)
    assert one.is_coming() and one.is_due()


def test_a_piece_that_can_be_left_is_left_by_all_ranks_in_it_and_ended_by_none(watches):
    ahead, behind = watches(2)
    for _ in range(3):
        assert not ahead.is_due()
    assert not behind.is_due()
    behind.asked.set()
    ahead.settled.wait(10), behind.settled.wait(10)
    assert ahead.is_coming() and not behind.is_coming()
    assert not behind.is_due() and not behind.is_coming()
    assert not behind.is_due() and behind.is_coming() and behind.is_due()


def test_a_rank_that_does_not_move_is_named(watches, monkeypatch):
    said = []
    monkeypatch.setattr(
        watch.Watch, "give_up", lambda self, why: (said.append(why), time.sleep(60))
    )
    stuck, waiting = watches(2, timeout=2)
    stuck.is_due(), waiting.is_due()
    waiting.beats += 1  # it has its batch
    end = time.monotonic() + 20
    while not said and time.monotonic() < end:
        time.sleep(0.1)
    assert said[0] == "rank 0 hangs: nothing has moved for --timeout 2 s"


def test_no_thread_is_left_in_a_store_when_python_ends_and_others_hear_where_the_rank_ended(
    watches,
):
    gone, left = watches(2)
    assert ending._duties == [gone.end, left.end]
    gone.is_due(), left.is_due(), left.is_due()
    gone.end()
    assert not any(thread.is_alive() for thread in gone.threads)
    left.asked.set()
    assert left.settled.wait(5) and left.last == 2


def test_a_thread_of_the_watch_can_end_the_process(watches, monkeypatch, capsys):
    """A6: it says why, and does what is to be done at the end, without waiting for itself."""
    ends = []
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    monkeypatch.setattr(watch.socket, "gethostname", lambda: "n1")
    one, other = watches(2)
    guard = one.threads[1]
    monkeypatch.setattr(ending.os, "_exit", lambda status: ends.append((status, guard.is_alive())))

    def settle():
        one.settled.set()
        one.give_up("cannot be saved: the other ranks do not answer")

    monkeypatch.setattr(one, "settle", settle)
    one.asked.set()
    for thread in one.threads:
        thread.join(20)
    assert ends == [(1, False)] and one.over.is_set() and other.over.is_set()
    line = "cannot be saved: the other ranks do not answer (says rank 0, n1)"
    assert capsys.readouterr() == ("", f"distributed.py: error: {line}\n")


# The store


@pytest.fixture
def job(monkeypatch):
    """A function that runs `shared_store` on two ranks at once; gives the stores."""
    here, sent = threading.local(), queue.Queue()

    def broadcast(value):
        if here.rank == 0:
            sent.put(value)
            return value
        return sent.get(timeout=60)

    monkeypatch.setattr(ranks, "is_rank_zero", lambda: here.rank == 0)
    monkeypatch.setattr(ranks, "broadcast", broadcast)
    monkeypatch.setenv("WORLD_SIZE", "2")

    def run():
        stores = {}

        def of_rank(rank):
            here.rank = rank
            stores[rank] = watch.shared_store()

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return stores[0], stores[1]

    return run


def test_ranks_of_one_host_share_a_store_of_their_own(job, monkeypatch):
    """A5: a signal to the whole job may end torchrun, and with it the store in which it has put
    them.
    """
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)  # it is not asked for
    first, second = job()
    assert (first.host, second.host) == ("127.0.0.1", "127.0.0.1")
    assert first.port == second.port != 0
    first.set("stop", "1")
    assert second.check(["stop"]) and not second.check(["at/0"])
    second.set("at/1", "2")
    assert first.get("at/1") == b"2"


@pytest.mark.parametrize(
    "name, own, host",
    [
        (
            "n1",
            "10.0.0.7",
            "10.0.0.7",
        ),  # rank 0 may be on another host than the store of the launcher
        ("n1", "127.0.0.1", "n1"),  # on n1 itself its name may mean that
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
    ],
)
def test_ranks_of_several_hosts_find_the_store_where_rank_0_meets_them(
    job, monkeypatch, name, own, host
):
    """A5: the address is the one by which rank 0 reaches MASTER_ADDR; others do not reach its
    127.0.0.1.
    """
    made, asked = [], []

    class Connection:
        def __enter__(self):
            return SimpleNamespace(getsockname=lambda: (own, 40000))

        def __exit__(self, *error):
            pass

    def store(name, port, world, is_first, *patience, **options):
        made.append((name, port, world, is_first))
        return SimpleNamespace(host=name, port=port or 5)

    monkeypatch.setattr(
        socket, "create_connection", lambda place, timeout: asked.append(place) or Connection()
    )
    monkeypatch.setattr(dist, "TCPStore", store)
    for variable, value in (
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", name),
        ("MASTER_PORT", "29500"),
    ):
        monkeypatch.setenv(variable, value)
    job()
    assert asked == [(name, 29500)]
    assert made == [(host, 0, None, True), (host, 5, None, False)]


def test_address_is_asked_of_a_real_connection(job, monkeypatch):
    """A5: two hosts that are one machine, with a name for itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
        monkeypatch.setenv("MASTER_ADDR", "localhost")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        first, second = job()
    first.set("stop", "1")
    assert second.get("stop") == b"1" and second.host == "localhost"
