"""Inserted by `saved_steps`."""

import atexit
import contextlib
import datetime
import os
import signal
import socket
import sys
import threading
import time

import torch.distributed as dist


class Watch:
    """Lets all ranks stop behind one and the same step, and ends a job in which one of them hangs.

    A signal may reach one rank alone, or each of them in another step, and a rank that left by itself would
    leave the others waiting. To ask all of them in each step would hold up each step; and the host of
    a GPU runs ahead of it, so no step of another rank can be told from one's own. So a thread of each rank looks into a
    store that all share, once a second. When one of them wants to stop, each thread writes down at which
    piece of work its rank is, and its rank does not begin another until all have done so; then all go on to the
    furthest of these, which none can have passed. A piece is a step of training, or a
    validation up to the exchange of its numbers, or what comes from there to the next epoch.
    """
    def __init__(self, timeout):
        self.timeout = timeout
        self.piece, self.last = 0, None  # at which the rank is, behind which all stop
        self.told = False
        self.beats = self.ticks = 0  # as long as they grow, the rank is getting on, and its thread is alive
        self.heard = time.monotonic()  # of the store
        self.asked, self.settled = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.rank, self.world = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
        self.store = None
        if self.world > 1:  # a connection of its own, which does not wait long where its host hangs
            store, _, _ = next(dist.rendezvous('env://', timeout=datetime.timedelta(seconds=10)))
            self.store = dist.PrefixStore('watch' + os.environ.get('TORCHELASTIC_RESTART_COUNT', ''), store)
        for name in ('SIGTERM', 'SIGINT', 'SIGUSR1'):
            signal.signal(getattr(signal, name), lambda number, frame: self.asked.set())
        self.over = threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.look, self.guard)]
        for thread in self.threads:
            thread.start()
        atexit.register(self.end)

    def beat(self):
        self.beats += 1

    def goes_on(self):
        """Begin the next piece of work, unless all stop here."""
        self.beat()
        with self.lock:
            if not self.told:
                self.piece += 1
                return True
        self.settled.wait()
        if self.piece < self.last:
            self.piece += 1
            return True
        return False

    def is_last(self):
        """Whether all stop with this piece of work, which need not be ended then."""
        self.beat()
        with self.lock:
            if not self.told:
                return False
        self.settled.wait()
        return self.piece == self.last

    def end(self):
        """Have no thread in a call of the store when Python ends: it would be unwound from there, and that aborts."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):  # the others need not wait to hear where this rank has ended
                self.store.set('piece/{}'.format(self.rank), str(self.piece))
        self.over.set()
        self.asked.set()
        for thread in self.threads:
            thread.join(5)

    def look(self):
        while not (self.over.wait(1) if self.told else self.asked.wait(1) and self.over.is_set()):
            wanted = self.asked.is_set() and not self.over.is_set()
            try:
                if self.store is not None:
                    self.tick()
                    wanted = self.store.check(['stop']) or wanted
                self.heard = time.monotonic()
                if wanted and not self.told:
                    self.settle()
            except RuntimeError:
                if wanted:
                    self.give_up('cannot be saved: the other ranks do not answer')

    def tick(self):
        """Write down where this rank is, and that its thread is alive."""
        self.ticks += 1
        self.store.set('at/{}'.format(self.rank), '{} {} {}'.format(self.piece, self.beats, self.ticks))

    def guard(self):
        """End the job when nothing moves; a thread of its own, since a store whose host hangs never answers."""
        seen, since = None, time.monotonic()
        while self.store is not None and not self.over.wait(1):
            if (self.piece, self.beats) != seen:
                seen, since = (self.piece, self.beats), time.monotonic()
            elif time.monotonic() - since > self.timeout:
                self.give_up(self.hung())

    def settle(self):
        """Agree with the threads of the other ranks on the last piece of work."""
        with self.lock:
            self.told = True
        pieces = [self.piece]
        if self.store is not None:
            self.store.set('stop', '1')
            self.store.set('piece/{}'.format(self.rank), str(self.piece))
            keys = ['piece/{}'.format(rank) for rank in range(self.world)]
            end = time.monotonic() + 10
            while not self.store.check(keys) and not self.over.is_set():
                if time.monotonic() > end:
                    missing = [str(rank) for rank, key in enumerate(keys) if not self.store.check([key])]
                    self.give_up('cannot be saved: rank {} does not answer'.format(', '.join(missing)))
                time.sleep(0.1)
            pieces = [int(self.store.get(key)) for key in keys if self.store.check([key])]
        self.last = max(pieces)
        self.settled.set()

    def hung(self):
        """Which rank the others wait for: one whose threads stand still too, or which is behind them."""
        ranks = [0]  # whose process, or launcher, has the store
        with contextlib.suppress(RuntimeError):
            if time.monotonic() - self.heard < 5:
                keys = ['at/{}'.format(rank) for rank in range(self.world)]
                before = [self.store.check([key]) and self.store.get(key) for key in keys]
                time.sleep(4)
                after = [self.store.check([key]) and self.store.get(key) for key in keys]
                ranks = [rank for rank, (a, b) in enumerate(zip(before, after)) if a == b]
                places = [tuple(map(int, value.split()[:2])) for value in after if value]
                ranks = ranks or [rank for rank, place in enumerate(places) if place < max(places)]
        where = 'rank {} hangs'.format(', '.join(map(str, ranks))) if ranks else 'all ranks hang, in the same step'
        return '{}: nothing has moved for --timeout {:g} s'.format(where, self.timeout)

    def give_up(self, why):
        """End this process from its thread, since its main one may wait for ever; the job ends with the first."""
        if self.over.wait(min(2 * self.rank, 10)):
            return  # it has ended by itself
        print('{}: error: {} (says rank {}, {})'.format(os.path.basename(sys.argv[0]), why, self.rank,
                                                        socket.gethostname()), file=sys.stderr, flush=True)
        os._exit(1)
