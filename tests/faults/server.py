"""Runs jobs of a training script, each of several ranks, without the seconds that importing torch takes.

    PYTHONPATH=tests/faults python tests/faults/server.py build/distributed.py

Torch is imported once, and each rank is a fork of this process. A line of JSON on standard input starts a job:

    {"id": 7, "ranks": 2, "argv": [...], "env": {...}, "logs": DIR, "agent_store": false, "own": {"1": {...}}}

and a line of JSON on standard output says how it ended: {"id": 7, "statuses": [75, 75], "pids": [...], "seconds": 1.2},
negative where a signal ended a rank. In `own` are `argv` and `env` that one rank gets besides. OUT in `env` is where
standard output goes, or "closed pipe"; the signals in IGNORED are ignored from the start.

As torchrun does, the server ends the other ranks when one has failed: SIGTERM, and SIGKILL a few seconds later. With
`agent_store` a process that is no rank holds the store of the job, as under torchrun.
"""

import atexit
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

GRACE = 3  # torchrun waits 30 s


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


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


class Job:
    def __init__(self, code, request):
        self.id, self.begun, self.failed = request["id"], time.monotonic(), None
        self.statuses = [None] * request["ranks"]
        logs, port = Path(request["logs"]), free_port()
        shared = {
            "WORLD_SIZE": request["ranks"],
            "LOCAL_WORLD_SIZE": request["ranks"],
            **request["env"],
        }
        shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "faults"}
        self.store = forked(lambda: hold_store(port)) if request["agent_store"] else None
        if self.store:
            shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}

        def work(rank):
            own = request["own"].get(str(rank), {})
            env = shared | {"RANK": rank, "LOCAL_RANK": rank} | own.get("env", {})
            os.environ.update({name: str(value) for name, value in env.items()})
            write_to(env.get("OUT"))
            for name in env.get("IGNORED", "").split():  # as by nohup
                signal.signal(signal.Signals[name], signal.SIG_IGN)
            sys.argv = request["argv"] + own.get("argv", [])
            exec(code, {"__name__": "__main__", "__file__": sys.argv[0]})

        self.pids = [
            forked(lambda rank=rank: work(rank), logs / f"out.{rank}", logs / f"err.{rank}")
            for rank in range(request["ranks"])
        ]

    def look(self):
        """Collect the ranks that have ended, and end the others where one has failed. Whether all have ended."""
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


def main(script):
    import torch.distributed  # noqa: F401
    import torchvision.transforms  # noqa: F401

    sys.path.insert(
        0, str(Path(script).parent)
    )  # as Python does for a script: support/ is beside it
    code = compile(Path(script).read_bytes(), script, "exec")
    jobs, rest = [], b""
    while True:
        if select.select([0], [], [], 0.02 if jobs else None)[0]:
            read = os.read(0, 1 << 16)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            jobs += [Job(code, json.loads(line)) for line in lines]
        for job in [job for job in jobs if job.look()]:
            jobs.remove(job)
            seconds = time.monotonic() - job.begun
            said = {"id": job.id, "statuses": job.statuses, "pids": job.pids, "seconds": seconds}
            print(json.dumps(said), flush=True)
    for job in jobs:
        for pid in job.pids:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
