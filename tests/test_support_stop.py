"""`support.stop`: signals, and what else stops the job in order."""

import argparse
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import environment

torch = pytest.importorskip("torch")

from patches.support import ending, stop  # noqa: E402


@pytest.fixture(autouse=True)
def ends(monkeypatch):
    """The statuses with which this process would have ended at once; no watch, and no Ctrl-C so
    far.
    """
    ends = []
    monkeypatch.setattr(ending, "at_once", ends.append)
    monkeypatch.setattr(stop, "_watch", None)
    monkeypatch.setattr(stop, "_presses", 0)
    monkeypatch.setattr(stop, "_pressed", float("-inf"))
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return ends


@pytest.fixture
def clock(monkeypatch):
    """The time, in seconds."""
    clock = [100.0]
    monkeypatch.setattr(stop, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


# Signals

BLOCKED = """\
import datetime, os, signal, threading, time
import torch.distributed as dist
from patches.support import stop

def blocked(names, ignored):
    if ignored:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop.catch_signals()
    threading.Thread(target=send, args=(names,)).start()
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=20))
    store.get("never")

def send(names):
    for name in names:
        time.sleep(0.2)  # the main thread is in C++ by then, and in no call that a signal interrupts
        os.kill(os.getpid(), getattr(signal, name))

for names, ignored in [*[((name,), False) for name in stop.NAMES], (("SIGHUP", "SIGUSR1"), True)]:
    if os.fork() == 0:
        try:
            blocked(names, ignored)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_signals_of_schedulers_and_people_are_heard_while_the_main_thread_waits_for_another_rank():
    """A4: SIGHUP killed the ranks, and a handler in Python is not called in a collective; `nohup`
    is obeyed.
    """
    env = environment(RANK=None, WORLD_SIZE=None)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], env=env, capture_output=True, text=True, timeout=300
    )
    lines = [
        f"stopped by {name} before the first step: there was nothing to save\n75\n"
        for name in (*stop.NAMES, "SIGUSR1")
    ]
    assert done.stdout == "".join(lines), done.stderr


def test_all_signals_that_ask_are_caught():
    """A4: those of schedulers, of a terminal that closes, and of Ctrl-C."""
    assert set(stop.NAMES) == {"SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"}


def heard(*numbers):
    """What `listen` does with these signals."""
    parts = iter([bytes(numbers)])
    with pytest.raises(StopIteration):
        stop.listen(SimpleNamespace(recv=lambda size: next(parts)), None)


def test_signal_during_training_asks_the_watch(monkeypatch, ends, capsys):
    """A10: then there is something to save, and the watch says what is done."""
    asked = []
    monkeypatch.setattr(
        stop, "_watch", SimpleNamespace(asked=SimpleNamespace(set=lambda: asked.append(True)))
    )
    heard(signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM)  # somebody else may listen for SIGCHLD
    assert asked == [True, True] and ends == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("rank", [0, 1])
def test_signal_before_the_first_step_ends_the_process_with_a_true_line(
    rank, monkeypatch, ends, capsys
):
    """A10: nothing was saved, and the status still says: run it again."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    heard(signal.SIGUSR1)
    line = "stopped by SIGUSR1 before the first step: there was nothing to save\n"
    assert ends == [stop.STATUS] == [75]
    assert capsys.readouterr() == (line if rank == 0 else "", "")


# Ctrl-C

SECOND = (
    "distributed.py: warning: it stops after this step; press Ctrl-C again to quit without saving\n"
)
THIRD = "distributed.py: warning: quit without saving\n"


@pytest.mark.parametrize(
    "times, says, status",
    [
        ([0], "", []),
        ([0, 0.01, 0.9], "", []),  # the terminal and torchrun
        ([0, 1.5], SECOND, []),
        ([0, 0.01, 1.5, 1.51], SECOND, []),
        ([0, 1.5, 3], SECOND + THIRD, [130]),
        ([0, 0.01, 1.5, 1.51, 3], SECOND + THIRD, [130]),
        ([0, 0.7, 1.4, 2.1, 2.8], SECOND + THIRD, [130]),  # somebody who does not wait
    ],
)
def test_third_ctrl_c_quits_and_the_second_says_so(times, says, status, clock, ends, capsys):
    """A9: a step that hangs held Ctrl-C off until somebody sent SIGKILL; two within a second are
    one.
    """
    for since in times:
        clock[0] = 100 + since
        stop.press()
    assert ends == status
    assert capsys.readouterr() == ("", says)


def test_what_torchrun_makes_of_ctrl_c_counts(clock, ends, capsys, monkeypatch):
    """A9: it passes on the first one, makes SIGTERM of the second, and is gone after the third."""
    monkeypatch.setattr(stop, "_watch", SimpleNamespace(asked=SimpleNamespace(set=lambda: None)))
    heard(signal.SIGINT)
    clock[0] += 2
    heard(signal.SIGTERM)
    assert (ends, capsys.readouterr().err) == ([], SECOND)
    clock[0] += 2
    stop.lose_launcher()
    assert (ends, capsys.readouterr().err) == ([130], THIRD)


def test_sigterm_of_a_scheduler_is_no_ctrl_c(clock, ends, monkeypatch):
    """A9: however often it comes, and if the launcher goes then, all is saved."""
    asked = []
    monkeypatch.setattr(
        stop, "_watch", SimpleNamespace(asked=SimpleNamespace(set=lambda: asked.append(True)))
    )
    for _ in range(5):
        heard(signal.SIGTERM)
        clock[0] += 2
    stop.lose_launcher()
    assert (len(asked), ends, stop._presses) == (6, [], 0)


def test_launcher_that_is_gone_before_the_first_step_is_named(ends, capsys):
    """A10: it is no signal."""
    stop.lose_launcher()
    assert ends == [75]
    line = "stopped by the end of its launcher before the first step: there was nothing to save\n"
    assert capsys.readouterr() == (line, "")


# The watch of the process


def test_process_has_one_watch_and_without_it_nothing_stops(monkeypatch):
    made = []
    monkeypatch.setattr(
        stop, "Watch", lambda timeout: made.append(timeout) or SimpleNamespace(beats=0)
    )
    stop.beat()
    assert not stop.is_due() and not stop.is_coming()
    stop.watch(5)
    stop.watch(9)
    assert made == [5]
    stop.beat()
    assert stop._watch.beats == 1


def test_module_asks_the_watch_of_the_process(monkeypatch):
    answers = SimpleNamespace(is_due=lambda: "due", is_coming=lambda: "coming")
    monkeypatch.setattr(stop, "_watch", answers)
    assert (stop.is_due(), stop.is_coming()) == ("due", "coming")


def test_save_every_is_off_unless_given():
    parser = argparse.ArgumentParser()
    stop.add_options(parser)
    assert parser.parse_args([]).save_every == 0
    assert parser.parse_args(["--save-every", "5"]).save_every == 5
    assert all(name in " ".join(parser.format_help().split()) for name in stop.NAMES)  # A4
