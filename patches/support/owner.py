"""One owner of the output folder: a lock there says which process of which run writes into it.

It is a hard link, which is made by one process alone also on a network disk. Its owner touches it
every BEAT seconds. Whoever finds it on the owner's machine looks whether that process lives; on
another machine, whether the file changes within PATIENCE seconds. No two clocks are compared.
An owner that has been taken for dead, for it stood still too long, ends at its next save.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from typing import Any

from . import ending
from .terminal import print_once

LOCK = "run.lock"
BEAT, PATIENCE = 10, 60
FIELDS = ("owner", "run", "host", "pid", "machine", "born", "since")

_mine: Any = None  # what this process has said in the lock
_busy = threading.Lock()  # a signal may end this process while it writes in the lock
_own = uuid.uuid4().hex[:8]  # two containers may have the same host name, and pid


def temporary_name(path) -> str:
    """A name for what will be `path`, which no other process uses."""
    return f"{path}.{socket.gethostname().partition('.')[0]}-{_own}.{os.getpid()}.tmp"


def take() -> "str | None":
    """Make this process the owner of the working directory, until it ends, or say why it cannot be.

    OSError if the disk does not let it.
    """
    global _mine
    me: dict[str, Any] = dict.fromkeys(FIELDS, "unknown")
    me |= {"owner": uuid.uuid4().hex, "pid": os.getpid()}
    me |= {"host": socket.gethostname(), "machine": machine(), "born": born(os.getpid())}
    me["since"] = time.strftime("%Y-%m-%d %H:%M:%S")
    while not linked(me):
        there = read()
        if there is None:
            time.sleep(0.01)  # it has just been removed
        elif there["owner"] == me["owner"]:
            break  # a network disk may have made a link, and its answer got lost
        elif is_alive(there):
            who = f"another job writes here since {there['since']} ({said(there)})"
            return f"{os.getcwd()}: {who}: wait for its end, or choose another --output-dir"
        elif taken_over(there, me):
            print_once(f"{LOCK}: its owner is gone ({said(there)})")
            break
    _mine = me
    ending.at_end(release)
    threading.Thread(target=beat, daemon=True).start()
    return None


def name_run(run: str):
    """Say in the lock which run writes here, once that is known."""
    with _busy:
        if _mine and not is_lost():
            _mine["run"] = run
            os.replace(written(_mine), LOCK)


def is_lost() -> bool:
    """Whether this process has been the owner, and another one is now."""
    there = read() if _mine else None
    return there is not None and there["owner"] != _mine["owner"]


def release():
    """Remove the lock, unless it is another process's by now. A forked child leaves it alone."""
    global _mine
    with _busy:
        there = read() if _mine and _mine["pid"] == os.getpid() else None
        if there and there["owner"] == _mine["owner"]:
            os.remove(LOCK)
            _mine = None


def linked(me) -> bool:
    """Whether this process has made the lock. A reader never finds it half written."""
    temporary = written(me)
    try:
        os.link(temporary, LOCK)
    except FileExistsError:
        return False
    except OSError:  # a disk without hard links
        try:
            with open(LOCK, "x") as file:
                json.dump(me, file)
        except FileExistsError:
            return False
    finally:
        os.remove(temporary)
    return True


def taken_over(there, me) -> bool:
    """Whether this process has put its lock in the place of a dead owner's.

    One process at a time tries to, and looks first if another one has done so.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a disk without such locks
            fcntl.flock(stack.enter_context(open(LOCK, "r+")), fcntl.LOCK_EX)
        found = read()
        if found is None or found["owner"] != there["owner"]:
            return False
        os.replace(written(me), LOCK)
    return True


def written(me) -> str:
    """The name of a file that holds what will be the lock."""
    temporary = temporary_name(LOCK)
    with open(temporary, "w") as file:
        json.dump(me, file)
    return temporary


def read() -> "dict[str, Any] | None":
    """What the lock says; None if there is none. All is unknown if it is damaged."""
    try:
        with open(LOCK) as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    return dict.fromkeys(FIELDS, "unknown") | (found if isinstance(found, dict) else {})


def said(there) -> str:
    """An owner, for a message."""
    return f"process {there['pid']} on {there['host']}, run {there['run']}"


def is_alive(there) -> bool:
    """Whether the owner of a lock still runs."""
    if there["machine"] == machine():
        now = born(there["pid"])
        if now != "running":
            return bool(now == there["born"])
    print_once(f"{LOCK} is of {there['host']}: looking for up to {PATIENCE} s if that job lives")
    seen, end = touched(), time.monotonic() + PATIENCE
    while seen and time.monotonic() < end:
        time.sleep(min(1, PATIENCE / 10))
        now = touched()
        if now != seen:
            return now is not None  # it may have ended meanwhile
    return False


def touched():
    """When the lock was touched. To open it first makes a network disk look again."""
    with contextlib.suppress(FileNotFoundError), open(LOCK) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def machine() -> str:
    """What tells this running system, and its process ids, from all others."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip() + os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {uuid.getnode()}"


def born(pid):
    """When a process of this machine began, in a unit of its own; None if there is none.

    "running" if that is all that can be known.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # another user's
        pass
    return "running"


def beat():
    """The thread that shows other machines that this owner is alive."""
    lost = False
    while not lost:
        with contextlib.suppress(OSError):  # a network disk may be away for a while
            lost = is_lost()
            if not lost:
                os.utime(LOCK)
        time.sleep(BEAT)
