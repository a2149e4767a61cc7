"""`support.ending`: what is done when a process ends, and a way out that cannot hang."""

import io
import threading
from types import SimpleNamespace

import pytest

from patches.support import ending


@pytest.fixture
def events(monkeypatch):
    """What happens, in its order, in a process without duties."""
    events = []
    monkeypatch.setattr(ending, "_duties", [])
    monkeypatch.setattr(
        ending.atexit, "register", lambda function: events.append(("registers", function))
    )
    monkeypatch.setattr(ending.os, "_exit", lambda status: events.append(("ends", status)))
    monkeypatch.setattr(ending.multiprocessing, "active_children", list)
    return events


def test_duties_are_done_once_and_the_last_one_first(events):
    """A2: what was taken last is given back first, as files are."""
    for name in "abc":
        ending.at_end(lambda name=name: events.append(name))
    assert events == [("registers", ending.perform)]
    ending.perform()
    ending.perform()
    assert events[1:] == ["c", "b", "a"]


def test_duty_that_fails_does_not_keep_the_others_from_theirs(events):
    """A6: the way out stays open, also if the store is gone."""

    def fails():
        raise ConnectionError("gone")

    for duty in (lambda: events.append("a"), fails, lambda: events.append("c")):
        ending.at_end(duty)
    ending.at_once(1)
    assert events[1:] == ["c", "a", ("ends", 1)]


def test_duty_may_end_the_process_itself(events):
    """A9: a Ctrl-C during the way out does nothing twice."""
    ending.at_end(lambda: events.append("a"))
    ending.at_end(lambda: ending.at_once(130))
    ending.at_once(1)
    assert events[1:] == ["a", ("ends", 130), ("ends", 1)]


def test_process_that_ends_at_once_ends_its_loading_processes_and_keeps_its_lines(
    events, monkeypatch
):
    """A6: the traceback is there before the process is gone, and nothing goes on loading."""
    ending.at_end(lambda: events.append("duty"))
    child = SimpleNamespace(terminate=lambda: events.append("terminates"))
    monkeypatch.setattr(ending.multiprocessing, "active_children", lambda: [child])
    for name in ("stdout", "stderr"):
        stream = SimpleNamespace(flush=lambda name=name: events.append(f"flushes {name}"))
        monkeypatch.setattr(ending.sys, name, stream)
    ending.at_once(75)
    assert events[1:] == ["duty", "terminates", "flushes stdout", "flushes stderr", ("ends", 75)]


@pytest.mark.parametrize("closed", [False, True])
def test_streams_that_are_gone_do_not_keep_it(events, closed, monkeypatch):
    """A13: None is what Python has for a stream that was closed before it began."""
    stream = io.StringIO()
    stream.close()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(ending.sys, name, stream if closed else None)
    ending.at_once(75)
    assert events == [("ends", 75)]


def test_duty_that_hangs_does_not_keep_the_process(events, monkeypatch):
    """A6: the store of a rank that stands still answers nobody."""
    ended = threading.Event()
    monkeypatch.setattr(ending, "PATIENCE", 0.01)
    monkeypatch.setattr(
        ending.os, "_exit", lambda status: (events.append(("ends", status)), ended.set())
    )
    ending.at_end(ended.wait)
    ending.at_once(1)
    assert events[1] == ("ends", 1)
