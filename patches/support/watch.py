"""Let all ranks stop after one and the same step; end a job in which one of them hangs."""

import contextlib
import datetime
import os
import socket
import sys
import threading
import time
from typing import Any

import torch.distributed as dist

from . import ending, ranks
from .terminal import program


def shared_store():
    """A store that rank 0 holds, with connections of its own that do not wait long. Collective.

    The job's own one may belong to the launcher, and a signal to the whole job may end that first.
    """
    patience = datetime.timedelta(seconds=10)
    store = None
    if ranks.is_rank_zero():
        host = "127.0.0.1"
        if ranks.local_world_size() < ranks.world_size():  # the address on the way to the others
            place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            with socket.create_connection(place, 10) as connection:
                host = connection.getsockname()[0]
            if host in ("127.0.0.1", "::1"):  # MASTER_ADDR names this host itself
                host = place[0]
        store = dist.TCPStore(host, 0, None, True, patience, wait_for_workers=False)
    host, port = ranks.broadcast(store and (store.host, store.port))
    return store or dist.TCPStore(host, port, None, False, patience)


class Watch:
    """Lets all ranks stop after one and the same step, and ends a job in which one of them hangs.

    A signal may reach one rank alone, or each of them in another step. A rank that left by itself
    would leave the others waiting. To ask all of them in each step would hold up each step; and a
    host runs ahead of its GPU, so its own step does not tell the steps of the other ranks.

    So a thread of each rank looks into a store that all share, once a second:

    1. A rank that wants to stop says so in the store.
    2. Each thread sees that, and writes down at which piece of work its rank is.
    3. Its rank begins no other piece until all threads have done so.
    4. All ranks go on to the furthest piece, which none can have passed, and stop after it.

    A piece is a step of training, a validation until its numbers are exchanged, or what comes from
    there to the next epoch.
    """

    def __init__(self, timeout: float):
        self.timeout = timeout
        self.piece = self.last = 0  # where the rank is; after which piece all stop, once settled
        self.told = False
        self.beats = self.ticks = 0  # they grow while the rank is getting on, its thread alive
        self.heard = time.monotonic()  # when the store last answered
        self.asked, self.settled, self.over = (threading.Event() for _ in range(3))
        self.lock = threading.Lock()
        self.rank, self.world = ranks.rank(), ranks.world_size()
        self.store: Any = shared_store() if self.world > 1 else None
        self.threads = [threading.Thread(target=self.listen), threading.Thread(target=self.guard)]
        for thread in self.threads:
            thread.daemon = True
            thread.start()
        ending.at_end(self.end)

    def is_due(self) -> bool:
        self.beats += 1
        with self.lock:
            if not self.told:
                self.piece += 1
                return False
        self.settled.wait()
        if self.piece < self.last:
            self.piece += 1
            return False
        return True

    def is_coming(self) -> bool:
        self.beats += 1
        with self.lock:
            if not self.told:
                return False
        self.settled.wait()
        return self.piece == self.last

    def end(self):
        """Have no thread in a call of the store when Python ends: unwound there, it would abort."""
        if self.store is not None and self.is_answering():
            # The others then need not wait to hear where this rank has ended.
            with contextlib.suppress(RuntimeError):
                self.store.set(f"piece/{self.rank}", str(self.piece))
        self.over.set()
        self.asked.set()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def listen(self):
        """The first thread: look for a wish to stop, here and in the store, once a second."""
        while not (self.over.wait(1) if self.told else self.asked.wait(1) and self.over.is_set()):
            wanted = self.asked.is_set() and not self.over.is_set()
            try:
                if self.store is not None:
                    self.tick()
                    wanted = self.store.check(["stop"]) or wanted
                self.heard = time.monotonic()
                if wanted and not self.told:
                    self.settle()
            except RuntimeError:
                if wanted:
                    self.give_up("cannot be saved: the other ranks do not answer")

    def tick(self):
        """Write down where this rank is, and that its thread is alive."""
        self.ticks += 1
        self.store.set(f"at/{self.rank}", f"{self.piece} {self.beats} {self.ticks}")

    def settle(self):
        """Agree with the threads of the other ranks on the last piece of work."""
        with self.lock:
            self.told = True
        pieces = [self.piece]
        if self.store is not None:
            self.store.set("stop", "1")
            self.store.set(f"piece/{self.rank}", str(self.piece))
            keys = [f"piece/{rank}" for rank in range(self.world)]
            end = time.monotonic() + 10
            while not self.store.check(keys) and not self.over.is_set():
                if time.monotonic() > end:
                    missing = [str(n) for n, key in enumerate(keys) if not self.store.check([key])]
                    self.give_up(f"cannot be saved: rank {', '.join(missing)} does not answer")
                time.sleep(0.1)
            pieces = [int(self.store.get(key)) for key in keys if self.store.check([key])]
        self.last = max(pieces)
        self.settled.set()

    def guard(self):
        """The second thread: end the job if nothing moves, also if the store never answers."""
        seen, since = None, time.monotonic()
        while not self.over.wait(1):
            if (self.piece, self.beats) != seen:
                seen, since = (self.piece, self.beats), time.monotonic()
            elif time.monotonic() - since > self.timeout:
                self.give_up(
                    f"{self.who_hangs()}: nothing has moved for --timeout {self.timeout:g} s"
                )

    def who_hangs(self) -> str:
        """The rank for which the others wait: its threads stand still too, or it is behind them."""
        hung = [0]  # its process has the store
        with contextlib.suppress(RuntimeError):
            if self.store is not None and self.is_answering():
                keys = [f"at/{rank}" for rank in range(self.world)]
                before = [self.store.check([key]) and self.store.get(key) for key in keys]
                time.sleep(4)
                after = [self.store.check([key]) and self.store.get(key) for key in keys]
                hung = [rank for rank, (a, b) in enumerate(zip(before, after)) if a == b]
                places = [tuple(map(int, value.split()[:2])) for value in after if value]
                hung = hung or [rank for rank, at in enumerate(places) if at < max(places)]
        names = ", ".join(map(str, hung))
        return f"rank {names} hangs" if hung else "all ranks hang, in the same step"

    def is_answering(self) -> bool:
        """Whether a call of the store is sure to end: it hangs while rank 0 stands still."""
        return time.monotonic() - self.heard < 5

    def give_up(self, why: str):
        """End this process from a thread: its main one may wait for ever. The job ends with it."""
        if self.over.wait(min(2 * self.rank, 10)):
            return  # it has ended by itself
        says = f"(says rank {self.rank}, {socket.gethostname()})"
        print(f"{program()}: error: {why} {says}", file=sys.stderr, flush=True)
        ending.at_once(1)
