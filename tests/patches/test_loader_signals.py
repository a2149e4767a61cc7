"""Loading processes outlive the signals that end a job, except that of their own loader."""

import os
import signal
import subprocess
import time

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for loader in run_worker(module, monkeypatch).loaders:
            prepare = loader.keywords.get("worker_init_fn", lambda worker: None)
            ready, told = os.pipe()
            child = os.fork()
            if child == 0:  # a loading process
                prepare(0)
                os.write(told, b"1")
                time.sleep(60)
                os._exit(5)
            os.read(ready, 1)
            for name in ("TERM", "INT", "USR1"):  # from a launcher or a terminal
                subprocess.run(["sh", "-c", f"kill -{name} {child}"], check=True)
            time.sleep(0.2)
            survived = os.waitpid(child, os.WNOHANG) == (0, 0)
            if survived:
                os.kill(child, signal.SIGTERM)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert survived
