"""`support.owner`: one job writes into a folder, and a job that has died does not keep it."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("torch")

from conftest import environment
from tiny_run import new_process

from patches.support import owner

GONE = {"pid": 4194305, "born": "1"}  # more than any process id


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One process in an empty folder, whose owner it is not; no thread, and nothing to do at the
    end.
    """
    new_process(tmp_path, monkeypatch)


class Clock:
    """A time that passes with each sleep; `then(n)` is called in the n-th one."""

    def __init__(self, then):
        self.now, self.sleeps, self.then = 0, itertools.count(1), then
        self.strftime = time.strftime

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.then(next(self.sleeps))


@pytest.fixture
def passing(monkeypatch):
    """A function that replaces the time."""

    def replace(then=lambda number: None):
        monkeypatch.setattr(owner, "time", Clock(then))
        return owner.time

    return replace


def lock_of(**more):
    """A lock of a process of this machine; of this one, if nothing else is said."""
    me = {
        "owner": "they",
        "run": "r1",
        "host": "node7",
        "pid": os.getpid(),
        "since": "2026-12-02 10:00:00",
    }
    return {**me, "machine": owner.machine(), "born": owner.born(os.getpid()), **more}


def put(path=owner.LOCK, **more):
    Path(path).write_text(json.dumps(lock_of(**more)))


def there():
    return json.loads(Path(owner.LOCK).read_text())


def test_first_owner_says_who_it_is_and_later_of_which_run_and_goes():
    """A2: the lock holds host, pid and run id, for as long as its owner lives."""
    assert owner.take() is None
    host = socket.gethostname()
    assert {name: there()[name] for name in ("host", "pid", "run")} == {
        "host": host,
        "pid": os.getpid(),
        "run": "unknown",
    }
    owner.name_run("abc")
    assert there()["run"] == "abc" and not owner.is_lost()
    assert os.listdir() == [owner.LOCK]
    owner.release()
    assert os.listdir() == []
    owner.release()


def test_second_owner_is_refused_in_one_line(tmp_path):
    """A2: the line says where, since when, and which process of which run on which host."""
    put()
    before = Path(owner.LOCK).read_bytes()
    assert owner.take() == (
        f"{tmp_path}: another job writes here since 2026-12-02 10:00:00 (process {os.getpid()} on node7, run r1): "
        "wait for its end, or choose another --output-dir"
    )
    assert (owner._mine, os.listdir(), Path(owner.LOCK).read_bytes()) == (
        None,
        [owner.LOCK],
        before,
    )


TAKES = "import time; from patches.support import owner; print(owner.take(), flush=True); time.sleep(600)"


def test_owner_that_is_killed_is_gone_at_once(capsys):
    """A2: two true processes. A zombie, whose parent has not asked how it ended, is gone as well."""
    with subprocess.Popen(
        [sys.executable, "-c", TAKES], env=environment(), stdout=subprocess.PIPE, text=True
    ) as first:
        try:
            assert first.stdout.readline() == "None\n"
            host = socket.gethostname()
            assert f"(process {first.pid} on {host}, run unknown): wait for" in owner.take()
        finally:
            first.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert owner.take() is None
        line = f"run.lock: its owner is gone (process {first.pid} on {host}, run unknown)\n"
        assert capsys.readouterr().out == line
    assert there()["pid"] == os.getpid()


@pytest.mark.parametrize("other", [GONE, {"born": "1"}])
def test_process_that_is_gone_or_has_given_its_number_to_another_one_is_no_owner(other, capsys):
    """A2: a process id may be another process's by now, which has begun at another time."""
    put(**other)
    assert owner.take() is None
    pid = other.get("pid", os.getpid())
    assert (
        capsys.readouterr().out == f"run.lock: its owner is gone (process {pid} on node7, run r1)\n"
    )
    assert there()["owner"] == owner._mine["owner"] != "they"


def touch(number, at=3):
    if number == at:
        os.utime(owner.LOCK, ns=(1, 1))


def test_owner_on_another_machine_is_alive_if_its_lock_changes(passing, capsys):
    """A2: whatever the clocks of the two machines say, and though a process of that number runs
    here.
    """
    put(machine="another")
    clock = passing(touch)
    assert "another job writes here" in owner.take()
    assert clock.now == 3
    assert (
        capsys.readouterr().out
        == "run.lock is of node7: looking for up to 60 s if that job lives\n"
    )


def test_owner_on_another_machine_is_gone_if_its_lock_does_not_change(passing, capsys):
    """A2: the next job waits for PATIENCE seconds, which are several of the owner's beats."""
    put(machine="another")
    os.utime(owner.LOCK, (2**33, 2**33))  # a clock that is far ahead
    clock = passing()
    assert owner.take() is None
    assert clock.now == owner.PATIENCE >= 3 * owner.BEAT
    assert "its owner is gone (process" in capsys.readouterr().out


def test_owner_that_ends_while_another_machine_looks_makes_room(passing, capsys):
    """A2: a requeued job may begin while the one before is still saving."""
    put(machine="another")
    passing(lambda number: number == 3 and os.remove(owner.LOCK))
    assert owner.take() is None
    assert "gone" not in capsys.readouterr().out
    owner.release()
    clock = passing()
    assert not owner.is_alive(lock_of(machine="another"))  # it ended before the first look
    assert clock.now == 0


def test_process_whose_begin_is_unknown_is_alive_if_its_lock_changes(passing, monkeypatch):
    """A2: without /proc nothing tells a process from a later one with its number, after a reboot
    for example.
    """
    monkeypatch.setattr(owner, "born", lambda pid: "running")
    put(born="running")
    passing(touch)
    assert owner.take() is not None
    passing()
    assert owner.take() is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[1]", b"\xff\xfe\x00", b'{"pid": 7}', b"\0" * 90]
)
def test_damaged_lock_counts_for_as_long_as_it_changes(content, passing):
    """A2: a machine that lost its power may leave an empty lock, a disk without links a half one."""
    Path(owner.LOCK).write_bytes(content)
    passing(touch)
    assert "another job writes here since unknown (process" in owner.take()
    passing()
    assert owner.take() is None
    assert there()["pid"] == os.getpid()


def no_links(*names):
    raise OSError(95, "Operation not supported")


def test_disk_without_hard_links_has_a_lock_too(monkeypatch, passing):
    """A2: there the lock is made empty and then written, so a reader gives it time."""
    monkeypatch.setattr(os, "link", no_links)
    assert owner.take() is None
    assert there()["pid"] == os.getpid() and os.listdir() == [owner.LOCK]
    assert "another job writes here" in owner.take()
    Path(owner.LOCK).write_bytes(b"")
    passing(lambda number: put(machine="another"))
    assert "another job writes here" in owner.take()


def test_disk_without_file_locks_has_an_owner_too(monkeypatch):
    """A2: flock only keeps two processes from replacing a dead lock in the same moment."""
    monkeypatch.setattr(owner.fcntl, "flock", no_links)
    put(**GONE)
    assert owner.take() is None
    assert there()["pid"] == os.getpid()


def test_link_that_was_made_though_the_disk_says_no_is_a_lock(monkeypatch):
    """A2: a network disk repeats a request if the answer is lost, and finds its own link there."""
    link = os.link

    def repeated(*names):
        link(*names)
        link(*names)

    monkeypatch.setattr(os, "link", repeated)
    assert owner.take() is None


@pytest.mark.parametrize("when", ["is_alive", "flock"])
def test_lock_of_whoever_was_quicker_is_not_touched(when, monkeypatch):
    """A2: between looking at a dead lock and replacing it, another process may do so."""
    place = owner if when == "is_alive" else owner.fcntl
    call = getattr(place, when)

    def slow(*given):
        result = call(*given)
        if there()["owner"] == "dead":
            put("quicker", owner="quicker")
            os.replace("quicker", owner.LOCK)
            inodes.append(os.stat(owner.LOCK).st_ino)
        return result

    monkeypatch.setattr(place, when, slow)
    put(owner="dead", **GONE)
    inodes = [os.stat(owner.LOCK).st_ino]
    assert "another job writes here" in owner.take()
    assert (there()["owner"], os.stat(owner.LOCK).st_ino) == ("quicker", inodes[1])
    assert os.listdir() == [owner.LOCK]


CONTEST = """
import json, multiprocessing, os, sys
from patches.support import owner

def contend():
    for _ in range(rounds):
        owner._mine = None
        begin.wait()
        refused = owner.take()
        begin.wait()  # all have their answer, and whoever has won still lives
        answers.put((refused is None, bool(refused) and "another job" in refused, owner.is_lost()))
        begin.wait()
        owner.release()
        begin.wait()

rounds, context = 40, multiprocessing.get_context("fork")
begin, answers = context.Barrier(4), context.SimpleQueue()
owner.ending.at_end, owner.beat, owner.print_once = print, print, len
children = [context.Process(target=contend, daemon=True) for _ in range(3)]
for child in children:
    child.start()
for number in range(rounds):
    if number % 4:
        dead = dict.fromkeys(owner.FIELDS, "dead") | {"machine": owner.machine(), "pid": 4194305}
        with open(owner.LOCK, "w") as file:
            json.dump(dead, file)
    begin.wait(60), begin.wait(60)
    found = sorted(answers.get() for _ in children)
    assert found == [(False, True, False), (False, True, False), (True, False, False)], found
    assert os.listdir() == [owner.LOCK], os.listdir()
    begin.wait(60), begin.wait(60)
    assert os.listdir() == [], os.listdir()
"""


def test_one_of_several_processes_wins():
    """A2: three processes at once for one folder, mostly with the lock of a dead owner in it, in 40
    rounds.
    """
    done = subprocess.run(
        [sys.executable, "-c", CONTEST],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_release_in_the_middle_of_a_write_leaves_nothing(monkeypatch):
    """A signal is heard in another thread, while this one names its run in the lock."""
    owner.take()
    written, threads = owner.written, []

    def struck(me):
        threads.append(Thread(target=owner.release))
        threads[0].start()
        threads[0].join(0.2)
        return written(me)

    monkeypatch.setattr(owner, "written", struck)
    owner.name_run("abc")
    threads[0].join()
    assert os.listdir() == []
    owner.name_run("too late")
    assert os.listdir() == []


def test_release_removes_ones_own_lock_only(monkeypatch):
    """A2: not that of another owner, and not from a child that ends in its parent's name."""
    put()
    owner.release()  # never an owner
    os.remove(owner.LOCK)
    owner.take()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 7)
        owner.release()
    assert there()["owner"] == owner._mine["owner"]
    put(owner="another")
    owner.release()
    assert there()["owner"] == "another"


def test_deleted_lock_is_missed_by_nobody_until_another_process_takes_it(passing):
    """A2: a job whose lock somebody has removed goes on, until there is another owner."""
    owner.take()
    os.remove(owner.LOCK)
    assert not owner.is_lost()
    put()
    assert owner.is_lost()
    owner.name_run("mine")
    assert there()["run"] == "r1"


def test_owner_touches_its_lock_until_it_is_anothers(passing, monkeypatch):
    """A2: also after a moment in which the disk did not answer."""
    owner.take()
    seen = []

    def then(number):
        seen.append(os.stat(owner.LOCK).st_mtime_ns > 1)
        os.utime(owner.LOCK, ns=(1, 1))
        if number == 2:
            monkeypatch.setattr(
                owner, "read", lambda: (_ for _ in ()).throw(OSError(5, "Input/output error"))
            )
        if number == 3:
            monkeypatch.setattr(owner, "read", there)
        if number == 4:
            put()
            os.utime(owner.LOCK, ns=(1, 1))

    clock = passing(then)
    owner.beat()
    assert seen == [True, True, False, True, False]
    assert clock.now == 5 * owner.BEAT


def test_temporary_name_is_that_of_one_process(monkeypatch):
    """A1: it says host and pid, and tells two containers apart that have both in common."""
    monkeypatch.setattr(socket, "gethostname", lambda: "node7.example.org")
    name = owner.temporary_name("dir/a")
    assert re.fullmatch(rf"dir/a\.node7-[0-9a-f]{{8}}\.{os.getpid()}\.tmp", name)
    monkeypatch.setattr(owner, "_own", "0" * 8)
    assert owner.temporary_name("dir/a") != name
