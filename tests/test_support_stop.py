"""`support.stop`: all ranks stop after one and the same piece of work."""

import argparse
import random
import threading
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from patches.support import stop  # noqa: E402


@pytest.fixture
def watches(monkeypatch):
    """A function that makes the watches of so many ranks, which share a store."""

    made = []

    def make(world, timeout=600):
        store = dist.HashStore()
        monkeypatch.setattr(stop.signal, "signal", lambda number, handler: None)
        monkeypatch.setattr(dist, "rendezvous", lambda url, timeout: iter([(store, 0, world)]))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            made.append(stop.Watch(timeout))
        return made[-world:]

    yield make
    for one in made:  # or it ends this process, which does not move on
        one.over.set()
        stop.atexit.unregister(one.end)


def work(one, pieces, dice):
    """Pieces of work of different lengths, until the watch ends them; how many."""
    done = 0
    while not one.is_due():
        time.sleep(dice.random() / 100)
        done += 1
        pieces.append((one.rank, done))
    return done


@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_stop_after_the_same_piece_whoever_was_asked_and_however_far_ahead_it_was(seed, watches):
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
    monkeypatch.setattr(stop.Watch, "give_up", lambda self, why: (said.append(why), time.sleep(60)))
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
    gone.is_due(), left.is_due(), left.is_due()
    gone.end()
    assert not any(thread.is_alive() for thread in gone.threads)
    left.asked.set()
    assert left.settled.wait(5) and left.last == 2


def test_the_process_has_one_watch_and_without_it_nothing_stops(monkeypatch):
    made = []
    monkeypatch.setattr(stop, "_watch", None)
    monkeypatch.setattr(stop, "Watch", lambda timeout: made.append(timeout) or SimpleNamespace(beats=0))
    stop.beat()
    assert not stop.is_due() and not stop.is_coming()
    stop.watch(5)
    stop.watch(9)
    assert made == [5]
    stop.beat()
    assert stop._watch.beats == 1


def test_module_asks_the_watch_of_the_process(watches, monkeypatch):
    (one,) = watches(1)
    monkeypatch.setattr(stop, "_watch", one)
    assert not stop.is_due() and one.piece == 1 and not stop.is_coming()
    one.asked.set()
    one.settled.wait(5)
    assert stop.is_coming() and stop.is_due()


def test_save_every_is_off_unless_given():
    parser = argparse.ArgumentParser()
    stop.add_options(parser)
    assert parser.parse_args([]).save_every == 0
    assert parser.parse_args(["--save-every", "5"]).save_every == 5
