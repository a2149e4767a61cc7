"""The watch: all ranks stop behind one and the same piece of work."""

import random
import threading
import time

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from patches.added import watch  # noqa: E402


@pytest.fixture
def watches(monkeypatch):
    """A function that makes the watches of so many ranks, which share a store."""

    made = []

    def make(world, timeout=600):
        store = dist.HashStore()
        monkeypatch.setattr(watch.signal, "signal", lambda number, handler: None)
        monkeypatch.setattr(dist, "rendezvous", lambda url, timeout: iter([(store, 0, world)]))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            made.append(watch.Watch(timeout))
        return made[-world:]

    yield make
    for one in made:  # or it ends this process, which does not move on
        one.over.set()
        watch.atexit.unregister(one.end)


def work(one, pieces, dice):
    """Pieces of work of different lengths, until the watch ends them; how many."""
    done = 0
    while one.goes_on():
        time.sleep(dice.random() / 100)
        done += 1
        pieces.append((one.rank, done))
    return done


@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_stop_behind_the_same_piece_whoever_was_asked_and_however_far_ahead_it_was(seed, watches):
    dice = random.Random(seed)
    ranks, pieces, ends = watches(3), [], {}
    threads = [
        threading.Thread(target=lambda one=one: ends.update({one.rank: work(one, pieces, random.Random(one.rank))}))
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


def test_one_process_alone_stops_at_once(watches):
    (one,) = watches(1)
    assert one.goes_on() and not one.is_last()
    one.asked.set()
    one.settled.wait(5)
    assert one.is_last() and not one.goes_on()


def test_a_piece_that_can_be_left_is_left_by_all_ranks_in_it_and_ended_by_none(watches):
    ahead, behind = watches(2)
    for _ in range(3):
        assert ahead.goes_on()
    assert behind.goes_on()
    behind.asked.set()
    ahead.settled.wait(10), behind.settled.wait(10)
    assert ahead.is_last() and not behind.is_last()
    assert behind.goes_on() and not behind.is_last()
    assert behind.goes_on() and behind.is_last() and not behind.goes_on()


def test_a_rank_that_does_not_move_is_named(watches, monkeypatch):
    said = []
    monkeypatch.setattr(watch.Watch, "give_up", lambda self, why: (said.append(why), time.sleep(60)))
    stuck, waiting = watches(2, timeout=2)
    stuck.goes_on(), waiting.goes_on()
    waiting.beat()  # it has its batch
    end = time.monotonic() + 20
    while not said and time.monotonic() < end:
        time.sleep(0.1)
    assert said[0] == "rank 0 hangs: nothing has moved for --timeout 2 s"


def test_no_thread_is_left_in_a_store_when_python_ends_and_others_hear_where_the_rank_ended(watches):
    gone, left = watches(2)
    gone.goes_on(), left.goes_on(), left.goes_on()
    gone.end()
    assert not any(thread.is_alive() for thread in gone.threads)
    left.asked.set()
    assert left.settled.wait(5) and left.last == 2
