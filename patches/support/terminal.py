"""Lines for whoever started the job: one line each, however many processes it has."""

import contextlib
import io
import os
import signal
import socket
import sys
import time

from . import ranks


def print_once(*args, **options):
    """`print` on rank 0 alone, at once even into a pipe."""
    if ranks.is_rank_zero():
        print(*args, flush=True, **options)


def warn(message: str):
    """Print a warning on rank 0 alone, to stderr.

    Python's own warnings name a line of the script, and `-W error` raises them.
    """
    if ranks.is_rank_zero():
        print(f"{program()}: warning: {message}", file=sys.stderr, flush=True)


def exit_with_error(message: str):
    """End this process with status 2; the first process of each host that fails so says why.

    Each host speaks, not the job: perhaps only one of them has the wrong folder, or no network.
    If there are several hosts, the line names its host. Mostly all processes of a host fail alike,
    so the first one speaks. Under torchrun, which ends all when one has ended, the others wait
    until it has spoken, and speak if it has not.
    """
    speaks = ranks.is_first_on_host()
    if not speaks and "TORCHELASTIC_RUN_ID" in os.environ:
        with contextlib.suppress(ValueError):  # another thread than the main one
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(30)
        speaks = True
    if speaks:
        one_host = ranks.local_world_size() == ranks.world_size()
        host = "" if one_host else f"{socket.gethostname()}: "
        print(f"{program()}: error: {host}{message}", file=sys.stderr, flush=True)
    sys.exit(2)


def program() -> str:
    """The script's file name, which begins every such line."""
    return os.path.basename(sys.argv[0])


def outlive_reader():
    """From here on, a line that cannot be written is lost, and the job goes on.

    Its reader may be gone: a terminal that was closed, `| head`, a full disk below a log.
    """
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no file, or closed
            raw = io.BufferedWriter(Lenient(old.fileno(), "wb", closefd=False))
            # A file name may hold what the terminal's encoding has no character for.
            new = io.TextIOWrapper(raw, old.encoding, "backslashreplace", line_buffering=True)
            setattr(sys, name, new)
            old.flush()  # what it held, if that can still be written


class Lenient(io.FileIO):
    """A file that takes all that is written, also if it cannot keep it."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError:
            return len(data)
