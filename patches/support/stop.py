"""The one way to stop: at signals of schedulers and of people, and if the launcher is gone.

All ranks end after the same step, save, and leave with status 75. Before training there is nothing
to save. Signal handlers belong to the process, so these are functions; docs/training.md has a table
of all that stops a job.
"""

import signal
import socket
import threading
import time

from . import ending, terminal
from .watch import Watch

NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STATUS = 75  # EX_TEMPFAIL: to be run again

_watch: "Watch | None" = None
_presses, _pressed = 0, float("-inf")


def add_options(parser):
    parser.add_argument(
        "--save-every",
        default=0,
        type=int,
        metavar="N",
        help="also save every N steps (default: 0, only after each epoch; and at SIGTERM, SIGINT, "
        "SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU, which end the run after the current step with "
        "status 75)",
    )


def catch_signals():
    """From here on, signals stop the job in order, and a closed terminal does not end it.

    They are heard in a thread: Python calls its handlers in the main thread only, and that one may
    wait for another rank for ever. A signal that is ignored already, as by nohup, stays so.
    """
    terminal.outlive_reader()
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    for number in numbers():
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    # The thread keeps `tells` as well: a socket that nobody holds is closed.
    threading.Thread(target=listen, args=(hears, tells), daemon=True).start()


def numbers() -> "list[int]":
    """The signals in NAMES that this system has."""
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def listen(hears, tells):
    """The thread that hears signals: Python writes the number of each into the other socket."""
    while True:
        for number in hears.recv(64):
            # torchrun passes on the first Ctrl-C, makes SIGTERM of the second, and is gone after
            # the third.
            if number == signal.SIGINT or (_presses and number == signal.SIGTERM):
                press()
            if number in numbers():
                ask(signal.Signals(number).name)


def press():
    """Count a Ctrl-C: the third one ends the process. Two within a second are one, passed on."""
    global _presses, _pressed
    if time.monotonic() - _pressed < 1:
        return
    _presses, _pressed = _presses + 1, time.monotonic()
    if _presses == 2:
        terminal.warn("it stops after this step; press Ctrl-C again to quit without saving")
    if _presses > 2:
        terminal.warn("quit without saving")
        ending.at_once(128 + signal.SIGINT)


def lose_launcher():
    """Stop the job as at a signal, or as at the last of several Ctrl-C."""
    if _presses:
        press()
    ask("the end of its launcher")


def ask(why: str):
    """Stop the job: after the current step, or at once if no training has begun."""
    if _watch is not None:
        _watch.asked.set()
        return
    terminal.print_once(f"stopped by {why} before the first step: there was nothing to save")
    ending.at_once(STATUS)


def watch(timeout: float):
    """From here on, let all ranks stop after the same step, and watch for ranks that hang.

    The job ends once nothing has moved for `timeout` seconds. A second call changes nothing.
    Collective.
    """
    global _watch
    if _watch is None:
        _watch = Watch(timeout)


def is_due() -> bool:
    """Whether all ranks stop here; False begins the next piece of work. False without `watch`."""
    return _watch is not None and _watch.is_due()


def is_coming() -> bool:
    """Whether all ranks stop with this piece of work, and need not finish it."""
    return _watch is not None and _watch.is_coming()


def beat():
    """Tell the watch that this rank is getting on."""
    if _watch is not None:
        _watch.beats += 1
