"""How this process ends: what it has to do then, and a way out that cannot hang."""

import atexit
import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable

PATIENCE = 10  # seconds: what is to be done may wait for another rank, too

_duties: "list[Callable[[], object]]" = []


def at_end(duty: "Callable[[], object]"):
    """Have `duty()` called once when this process ends, unless it is killed; the last one first."""
    if not _duties:
        atexit.register(perform)
    _duties.append(duty)


def perform():
    """Do what is to be done at the end, each of it once."""
    while _duties:
        with contextlib.suppress(Exception):  # the way out stays open
            _duties.pop()()


def at_once(status: int):
    """End this process, from any of its threads.

    Python's own way out waits for threads and destructors, and these may wait for another rank.
    """
    limit = threading.Timer(PATIENCE, os._exit, [status])
    limit.daemon = True
    limit.start()
    perform()
    for child in multiprocessing.active_children():  # they would go on loading for some seconds
        child.terminate()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)
