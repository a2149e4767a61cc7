"""Runs jobs of training scripts, each of several ranks, without the seconds of importing torch.

    PYTHONPATH=tests/faults python tests/faults/server.py

Torch is imported once, and each rank is a fork of this process. A line of JSON on standard input
starts a job:

    {"id": 7, "script": PATH, "argv": [...], "ranks": 2, "gpus": null, "cwd": DIR, "logs": DIR,
     "env": {...}, "agent_store": false, "own": {"1": {"argv": [...], "env": {...}}}}

and a line of JSON on standard output says how it ended: {"id": 7, "statuses": [75, 75], "pids":
[...]}, negative if a signal ended a rank. `ranks` is null for one process without a launcher,
`gpus` the number of pretended devices (see `tests/stand_in`) or null. `own` is what one rank gets
besides. OUT in `env` is where standard output goes, or "closed pipe"; the signals in IGNORED are
ignored from the start.

As torchrun does, the server ends the other ranks after one has failed: SIGTERM, and SIGKILL a few
seconds later. With `agent_store` a process that is no rank holds the store of the job.
"""

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

GRACE = 3  # torchrun waits 30 s
STAND_IN = Path(__file__).resolve().parent.parent / "stand_in" / "sitecustomize.py"


def free_port():
    """A port that nobody listens at, and none that the system gives to whoever asks for any."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def forked(work, out=None, err=None):
    """The id of a new process that does `work`, and ends."""
    if child := os.fork():
        return child
    status = 1
    try:
        for stream, path in ((0, "/dev/null"), (1, out), (2, err)):
            mode = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(path or "/dev/null", mode), stream)
        work()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # as when Python ends
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def write_to(out):
    if out == "closed pipe":
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.close(reader)
    elif out:
        os.dup2(os.open(out, os.O_WRONLY), 1)


def hold_store(port):
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    while store:
        time.sleep(60)


def run(request, rank, env):
    """Be one rank of a job."""
    os.environ.update({name: str(value) for name, value in env.items() if value is not None})
    os.chdir(request["cwd"])
    write_to(env.get("OUT"))
    for name in env.get("IGNORED", "").split():  # as by nohup
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    if request["gpus"] is not None:
        import torch

        runpy.run_path(str(STAND_IN))["play"](torch, request["gpus"])
    script = Path(request["script"])
    sys.argv = [str(script), *request["argv"], *request["own"].get(str(rank), {}).get("argv", [])]
    sys.path.insert(0, str(script.parent))  # as Python does: support/ is beside it
    sys.modules["__main__"].__file__ = str(script)  # support/ asks whose folder it is
    code = compile(script.read_bytes(), script, "exec")
    exec(code, {"__name__": "__main__", "__file__": str(script)})


class Job:
    def __init__(self, request):
        self.id, self.failed, self.store = request["id"], None, None
        count, logs, shared = request["ranks"], Path(request["logs"]), request["env"]
        self.statuses = [None] * (count or 1)
        if count:
            port = free_port()
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count}
            more = {"LOCAL_WORLD_SIZE": count, "TORCHELASTIC_RUN_ID": "forked"}
            shared = {**place, **more, **shared}
        if request["agent_store"]:
            self.store = forked(lambda: hold_store(port))
            shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        self.pids = []
        for rank in range(count or 1):
            place = {"RANK": rank, "LOCAL_RANK": rank} if count else {}
            env = {**shared, **place, **request["own"].get(str(rank), {}).get("env", {})}
            streams = [str(logs / f"{name}.{rank}") for name in ("out", "err")]
            work = lambda rank=rank, env=env: run(request, rank, env)  # noqa: E731
            self.pids.append(forked(work, *streams))

    def look(self):
        """Collect the ranks that have ended; after one has failed, end the others.

        Whether all have ended.
        """
        left = [rank for rank, status in enumerate(self.statuses) if status is None]
        for rank in left:
            pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
            if pid:
                self.statuses[rank] = os.waitstatus_to_exitcode(status)
        left = [self.pids[rank] for rank in left if self.statuses[rank] is None]
        if left and self.failed is None and any(self.statuses):
            self.failed = time.monotonic()
            for pid in left:
                os.kill(pid, signal.SIGTERM)
        if left and self.failed and time.monotonic() - self.failed > GRACE:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        if not left and self.store:
            os.kill(self.store, signal.SIGKILL)
            os.waitpid(self.store, 0)
        return not left


def main():
    import torch.distributed.elastic.multiprocessing.errors  # noqa: F401
    import torchvision  # noqa: F401

    gc.freeze()  # what is there already is not copied for each rank
    jobs, rest = [], b""
    while True:
        if select.select([0], [], [], 0.02 if jobs else None)[0]:
            read = os.read(0, 1 << 16)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            jobs += [Job(json.loads(line)) for line in lines]
        for job in [job for job in jobs if job.look()]:
            jobs.remove(job)
            said = {"id": job.id, "statuses": job.statuses, "pids": job.pids}
            print(json.dumps(said), flush=True)
    for job in jobs:
        for pid in job.pids:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
